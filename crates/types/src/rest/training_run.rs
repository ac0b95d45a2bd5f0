use super::{Checkpoint, Cursor};
use crate::{ModelId, UserMetadata};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A training run: a model and what was saved of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TrainingRun {
    /// Which run; also its model's id.
    pub training_run_id: ModelId,
    /// Its name, which is unique among its owner's runs. Only some servers name runs; see [`name`](Self::name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model it started from.
    pub base_model: String,
    /// Who owns it.
    pub model_owner: String,
    /// Whether an adapter is trained.
    pub is_lora: bool,
    /// Whether it can no longer be trained.
    #[serde(default)]
    pub corrupted: bool,
    /// The adapter's rank.
    #[serde(default)]
    pub lora_rank: Option<u32>,
    /// When it last did something.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub last_request_time: Timestamp,
    /// The newest checkpoint of its training state.
    #[serde(default)]
    pub last_checkpoint: Option<Checkpoint>,
    /// The newest checkpoint to sample from.
    #[serde(default)]
    pub last_sampler_checkpoint: Option<Checkpoint>,
    /// Its labels.
    #[serde(default)]
    pub user_metadata: Option<UserMetadata>,
    /// The numeric path that it computes with, such as `q8_0/int8@0123456789abcdef`. Only some servers say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numerics: Option<String>,
    /// Those that it has computed with before, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_numerics: Vec<String>,
}

impl TrainingRun {
    /// Returns the name of the run: what the server says, or the label `name` that its client gave it.
    pub fn name(&self) -> Option<&str> {
        let label = || self.user_metadata.as_ref()?.get(crate::NAME_LABEL);
        let name = self.name.as_deref();
        name.or_else(|| label().map(String::as_str))
    }

    /// Returns what the run has in common with the other attempts of its training, if its client said so.
    pub fn resume_id(&self) -> Option<&str> {
        let label = self.user_metadata.as_ref()?.get(crate::RESUME_LABEL);
        label.map(String::as_str)
    }

    /// Makes a run that trains an adapter and has saved nothing yet.
    pub fn new(
        training_run_id: ModelId,
        base_model: impl Into<String>,
        model_owner: impl Into<String>,
        last_request_time: Timestamp,
    ) -> Self {
        Self {
            training_run_id,
            name: None,
            base_model: base_model.into(),
            model_owner: model_owner.into(),
            is_lora: true,
            corrupted: false,
            lora_rank: None,
            last_request_time,
            last_checkpoint: None,
            last_sampler_checkpoint: None,
            user_metadata: None,
            numerics: None,
            earlier_numerics: Vec::new(),
        }
    }
}

/// A page of training runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TrainingRunPage {
    /// The runs.
    pub training_runs: Vec<TrainingRun>,
    /// Where the page lies.
    pub cursor: Cursor,
}

impl TrainingRunPage {
    /// Makes a page.
    pub fn new(training_runs: Vec<TrainingRun>, cursor: Cursor) -> Self {
        Self {
            training_runs,
            cursor,
        }
    }
}
