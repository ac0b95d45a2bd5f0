use crate::{SamplingSessionId, TinkerPath};
use serde::{Deserialize, Serialize};

/// What is known of a sampling session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SamplerInfo {
    /// Which one.
    pub sampler_id: SamplingSessionId,
    /// The base model, resolved even if the session was made from a path.
    pub base_model: String,
    /// The checkpoint that is sampled from.
    #[serde(default)]
    pub model_path: Option<TinkerPath>,
    /// The tokenizer, if it is not the base model's own. A server of ours says so; the hosted service does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_id: Option<String>,
}

impl SamplerInfo {
    /// Describes a sampler.
    pub fn new(
        sampler_id: SamplingSessionId,
        base_model: impl Into<String>,
        model_path: Option<TinkerPath>,
    ) -> Self {
        Self {
            sampler_id,
            base_model: base_model.into(),
            model_path,
            tokenizer_id: None,
        }
    }
}
