//! What the studio shows of runs: a list of them, their operations, and the data of a step.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tinkrs_types::{ModelId, RequestId, SessionId, Timestamp};

use super::metrics::MetricSource;

/// Which runs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunsQuery {
    /// A text in the run's id, name, base model, labels, tags or the checkpoint that it started from.
    pub query: Option<String>,
    /// How many at most; 50 by default, and never more than 500.
    pub limit: Option<u64>,
    /// How many to skip.
    pub offset: Option<u64>,
}

/// Runs, the one used last first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunSummaries {
    /// This page of them.
    pub runs: Vec<RunSummary>,
    /// How many there are.
    pub total: u64,
}

/// A run in a few words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunSummary {
    /// Its id.
    pub id: ModelId,
    /// What people know it by.
    pub name: String,
    /// What it trains.
    pub base_model: String,
    /// The version of the client that made it, as that says.
    pub client: String,
    /// What it does.
    pub state: RunState,
    /// Why it has ended, if it has.
    pub detail: Option<String>,
    /// How often the optimizer was applied.
    pub step: i64,
    /// The last value of each metric; at most 64 of them.
    pub last: BTreeMap<String, f64>,
    /// At the last step, while computing.
    pub tokens_per_second: Option<f64>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its client last asked for something.
    pub last_request_at: Timestamp,
    /// The rank of its adapter.
    pub rank: u32,
    /// What it has used.
    pub cost: RunCost,
    /// The tags of its session.
    pub tags: Vec<String>,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
    /// The checkpoint that it began with.
    pub started_from: Option<String>,
    /// Its session.
    pub session_id: SessionId,
}

/// What a run has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunCost {
    /// Tokens that it was trained on.
    pub tokens: u64,
    /// Seconds of computing.
    pub seconds: f64,
}

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// An operation is computed.
    Training,
    /// Operations wait.
    Waiting,
    /// It has nothing to do.
    Idle,
    /// It was closed.
    Finished,
    /// Its weights were lost.
    Failed,
}

/// Which operations of a run to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OperationsQuery {
    /// Only those before the one of this `number`.
    pub before: Option<i64>,
    /// How many at most; 200 by default, and never more than 1000.
    pub limit: Option<u64>,
}

/// Operations of a run, the latest first. Those that have not ended come before all others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunOperations {
    /// This page of them.
    pub operations: Vec<RunOperation>,
    /// Whether there are more before these.
    pub more: bool,
}

/// An operation of a run. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunOperation {
    /// Its number among all that have ended.
    pub number: Option<i64>,
    /// The request.
    pub request_id: RequestId,
    /// What it does, such as `forward_backward`.
    pub kind: String,
    /// Its place in the run.
    pub seq_id: Option<i64>,
    /// `json`, `pass` or `failed`, once it has ended.
    pub outcome: Option<String>,
    /// When it was accepted.
    pub accepted: i64,
    /// When it began.
    pub started: Option<i64>,
    /// When it ended.
    pub ended: Option<i64>,
    /// How long it was computed. What is left between `started` and `ended` was the turn of others.
    pub compute_ms: Option<u64>,
    /// Why it waited between `accepted` and `started`.
    pub waits: Vec<Wait>,
}

/// Why an operation waited, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Wait {
    /// `store`: it was written to the disk. `gap`: an earlier seq_id had not come. `turn`: another owner, run or sample
    /// was computed. `memory`: it did not fit beside what was under way. `paused`: the server did not run. `compute`:
    /// its own run's earlier operation.
    pub reason: String,
    /// For how long.
    pub ms: u64,
}

/// Which datums of a step to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StepQuery {
    /// How many to skip.
    pub offset: Option<u64>,
    /// How many at most; 64 by default, and never more than 256. A page ends before it has 200,000 tokens.
    pub limit: Option<u64>,
}

/// The data of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepData {
    /// The step.
    pub step: i64,
    /// This page of its datums.
    pub datums: Vec<StepDatum>,
    /// How many there are.
    pub total: u64,
    /// The steps whose data the journal still has.
    pub kept: KeptSteps,
}

/// Steps whose data the journal still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptSteps {
    /// The first of them.
    pub from: i64,
    /// The last of them. It is one more than the run's steps while passes wait for the optimizer.
    pub to: i64,
}

/// A datum as the model saw it.
///
/// Every list of numbers has one for each token, and the first is null: nothing predicts the first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepDatum {
    /// Its place among those of the step.
    pub index: u64,
    /// The pass that it was in.
    pub request_id: RequestId,
    /// The loss.
    pub loss_fn: String,
    /// The first token of the input, and then the tokens to predict.
    pub tokens: Vec<TokenText>,
    /// How much each counts.
    pub weights: Option<Vec<Option<f64>>>,
    /// The log-probability that the trained model gave each.
    pub target_logprobs: Option<Vec<Option<f64>>>,
    /// The log-probability that each was sampled with.
    pub sampler_logprobs: Option<Vec<Option<f64>>>,
    /// How much better each was than expected.
    pub advantages: Option<Vec<Option<f64>>>,
    /// Minus the weighted sum of `target_logprobs`, if the loss is the cross-entropy and the result is still kept.
    pub loss: Option<f64>,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenText {
    /// Its number; none for something that is not text.
    pub id: Option<u32>,
    /// Its text. Bytes that are no text alone are U+FFFD.
    pub text: String,
}

/// Whose changes to hear of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Of this run, with every step and operation. By default of all runs, with the newest alone.
    pub run: Option<String>,
}

/// What `event: metrics` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MetricsEvent {
    /// Of which run.
    pub run: ModelId,
    /// At which step.
    pub step: i64,
    /// Who computed them; absent where those of a run are told as they are now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<MetricSource>,
    /// The values that are new.
    pub metrics: BTreeMap<String, f64>,
}

/// What `event: operation` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OperationEvent {
    /// Of which run.
    pub run: ModelId,
    /// What has ended.
    pub operation: RunOperation,
}
