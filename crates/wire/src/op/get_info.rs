//! `POST /get_info`: what is known of a model, as [`tinkrs_types::training::ModelInfo`].

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::ModelId;
use tinkrs_types::training::ModelInfo;

/// Asks about a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetInfoRequest {
    /// Which model.
    pub model_id: ModelId,
}

body!(GetInfoRequest, "get_info");
body!(ModelInfo, "get_info");
