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
        }
    }
}
