//! Requests under way: promises, queue statuses, completions, failures.

use crate::service::{ErrorCategory, QueueState};
use crate::{ModelId, RequestId, SequenceId};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// How many sample sequence numbers each clone of a sampling session may use.
///
/// `seq_id / SAMPLE_SEQ_BLOCK` is the clone; the original client is clone 0.
pub const SAMPLE_SEQ_BLOCK: u64 = 1_000_000_000;

/// The server's word that a request was taken: where to fetch its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Promise {
    /// Where to fetch the result.
    pub request_id: RequestId,
    /// The model that the request is for.
    #[serde(default)]
    pub model_id: Option<ModelId>,
    /// The ids of the sequences to come, for sampling.
    #[serde(default)]
    pub sample_sequence_ids: Option<Vec<SequenceId>>,
}

/// What kind of request a result belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestType {
    /// Creates a model.
    CreateModel,
    /// Computes a loss without gradients.
    Forward,
    /// Computes a loss and accumulates gradients.
    ForwardBackward,
    /// Applies the accumulated gradients.
    OptimStep,
    /// Saves training state.
    SaveWeights,
    /// Loads training state.
    LoadWeights,
    /// Saves weights to sample from.
    SaveWeightsForSampler,
    /// Saves weights to download.
    SaveWeightsExternal,
    /// Samples.
    Sample,
    /// Uploads a custom loss.
    CreateCustomLoss,
}

impl RequestType {
    /// Returns the name that clients send with each poll.
    pub fn name(self) -> &'static str {
        match self {
            Self::CreateModel => "CreateModel",
            Self::Forward => "Forward",
            Self::ForwardBackward => "ForwardBackward",
            Self::OptimStep => "OptimStep",
            Self::SaveWeights => "SaveWeights",
            Self::LoadWeights => "LoadWeights",
            Self::SaveWeightsForSampler => "SaveWeightsForSampler",
            Self::SaveWeightsExternal => "SaveWeightsExternal",
            Self::Sample => "Sample",
            Self::CreateCustomLoss => "CreateCustomLoss",
        }
    }
}

/// A queue state with the server's reason for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueStatus {
    /// Whether the server works on the request.
    #[serde(rename = "queue_state", default)]
    pub state: QueueState,
    /// Why it does not.
    #[serde(
        rename = "queue_state_reason",
        default,
        deserialize_with = "text_or_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub reason: Option<String>,
}

/// News must not fail because of its explanation.
fn text_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

/// A request that was taken and then failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailedRequest {
    /// What went wrong.
    pub error: String,
    /// Whose fault it is.
    #[serde(default)]
    pub category: ErrorCategory,
}

/// News of a request from the batched feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Completion {
    /// Its result can be fetched.
    Finished {
        /// Which request.
        request_id: RequestId,
        /// How large the result is.
        #[serde(default)]
        response_payload_uncompressed_size: Option<u64>,
    },
    /// Its failure can be fetched.
    Failed {
        /// Which request.
        request_id: RequestId,
    },
}

impl Completion {
    /// Returns which request it is about.
    pub fn request_id(&self) -> &RequestId {
        match self {
            Self::Finished { request_id, .. } | Self::Failed { request_id } => request_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_or_category_that_is_new_or_null_is_unknown() {
        for body in [
            r#"{"queue_state": "paused_by_cat"}"#,
            r#"{"queue_state": null}"#,
            "{}",
        ] {
            assert_eq!(
                serde_json::from_str::<QueueStatus>(body).unwrap(),
                QueueStatus::default()
            );
        }
        let failed: FailedRequest =
            serde_json::from_str(r#"{"error": "x", "category": "new"}"#).unwrap();
        assert_eq!(failed.category, ErrorCategory::Unknown);
    }
}
