//! `POST /save_weights_external`: saves weights to download, as [`tinkrs_types::training::ExternalSave`].

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::ModelId;
use tinkrs_types::training::ExternalSave;

/// Saves weights to download.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SaveWeightsExternalRequest {
    /// Which model.
    pub model_id: ModelId,
    /// The checkpoint's name.
    pub path: String,
    /// The request's place in the model's order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seq_id: Option<i64>,
    /// How long it is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_seconds: Option<u64>,
    /// At most ten keys to encrypt the files for: `age1…` or SSH public keys.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub age_encryption_recipients: Option<Vec<String>>,
}

body!(SaveWeightsExternalRequest, "save_weights_external");
body!(ExternalSave, "save_weights_external");
