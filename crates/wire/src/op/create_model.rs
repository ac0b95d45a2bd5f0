//! `POST /create_model`: creates a model to train.

use crate::json::body;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{LoraConfig, ModelId, SessionId};

/// Creates a model to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateModelRequest {
    /// The session it belongs to.
    pub session_id: SessionId,
    /// Its number in that session.
    pub model_seq_id: u64,
    /// The model to start from.
    pub base_model: String,
    /// Labels of the run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user_metadata: Option<Map<String, Value>>,
    /// The adapter to train.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lora_config: Option<LoraConfig>,
    /// The optimizer.
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
}

body!(CreateModelRequest, "create_model");

/// A model that was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateModelResult {
    /// Which one.
    pub model_id: ModelId,
}

body!(CreateModelResult, "create_model");
