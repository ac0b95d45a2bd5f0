use super::OptimizerConfig;
use crate::ModelId;
use serde::{Deserialize, Serialize};

/// What is known of a model's architecture and tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct ModelData {
    /// The architecture.
    pub arch: Option<String>,
    /// The base model's name, which also leads to its tokenizer.
    pub model_name: Option<String>,
    /// The tokenizer, if it is not the base model's own.
    pub tokenizer_id: Option<String>,
}

/// What is known of a model under training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ModelInfo {
    /// Which model.
    pub model_id: ModelId,
    /// Its architecture and tokenizer.
    pub model_data: ModelData,
    /// Its optimizer.
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
    /// Whether an adapter is trained.
    #[serde(default)]
    pub is_lora: Option<bool>,
    /// The adapter's rank.
    #[serde(default)]
    pub lora_rank: Option<u32>,
    /// The base model's name.
    #[serde(default)]
    pub model_name: Option<String>,
}

impl ModelInfo {
    /// Makes the information that is always there.
    pub fn new(model_id: ModelId, model_data: ModelData) -> Self {
        Self {
            model_id,
            model_data,
            optimizer_config: OptimizerConfig::default(),
            is_lora: None,
            lora_rank: None,
            model_name: None,
        }
    }
}
