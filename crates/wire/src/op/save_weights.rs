//! `POST /save_weights`: saves training state.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::{ModelId, TinkerPath, UserMetadata};

/// Saves training state under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SaveWeightsRequest {
    /// Which model.
    pub model_id: ModelId,
    /// The checkpoint's name. Clients to 0.16 may leave it out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// The request's place in the model's order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seq_id: Option<i64>,
    /// How long it is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_seconds: Option<u64>,
    /// Replaces a checkpoint of the same name.
    #[serde(default)]
    pub overwrite: bool,
    /// Its labels.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user_metadata: Option<UserMetadata>,
}

body!(SaveWeightsRequest, "save_weights");

/// Training state that was saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SaveWeightsResult {
    /// Where.
    pub path: TinkerPath,
}

body!(SaveWeightsResult, "save_weights");
