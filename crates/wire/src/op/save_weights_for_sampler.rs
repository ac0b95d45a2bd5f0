//! `POST /save_weights_for_sampler`: saves weights to sample from, by name or for one sampler.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::{ModelId, SamplingSessionId, TinkerPath, UserMetadata};

/// Saves weights to sample from: under a name, or for a new sampling session only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SaveWeightsForSamplerRequest {
    /// Which model.
    pub model_id: ModelId,
    /// The checkpoint's name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// The number of the sampling session to open instead.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sampling_session_seq_id: Option<u64>,
    /// The request's place in the model's order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seq_id: Option<i64>,
    /// How long it is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_seconds: Option<u64>,
    /// Its labels.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user_metadata: Option<UserMetadata>,
}

body!(SaveWeightsForSamplerRequest, "save_weights_for_sampler");

/// Weights that were saved: one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SaveWeightsForSamplerResult {
    /// Where, if they have a name. Clients to 0.19 want it null if they have none.
    pub path: Option<TinkerPath>,
    /// The sampling session that was opened, if they have none.
    pub sampling_session_id: Option<SamplingSessionId>,
}

body!(SaveWeightsForSamplerResult, "save_weights_for_sampler");
