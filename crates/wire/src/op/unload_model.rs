//! `POST /unload_model`: frees a model. Clients to 0.25 only.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::ModelId;

/// Frees a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnloadModelRequest {
    /// Which model.
    pub model_id: ModelId,
}

body!(UnloadModelRequest, "unload_model");

/// A model that was freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnloadModelResult {
    /// Which model.
    pub model_id: ModelId,
}

body!(UnloadModelResult, "unload_model");
