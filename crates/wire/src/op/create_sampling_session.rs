//! `POST /create_sampling_session`: opens a model or a checkpoint for sampling.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::{SamplingSessionId, SessionId};

/// Opens a model or a checkpoint for sampling. It names one of the two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateSamplingSessionRequest {
    /// The session it belongs to.
    pub session_id: SessionId,
    /// Its number in that session.
    pub sampling_session_seq_id: u64,
    /// A model.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base_model: Option<String>,
    /// A checkpoint. It is text here, so that a server can say what is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model_path: Option<String>,
}

body!(CreateSamplingSessionRequest, "create_sampling_session");

/// A sampling session that was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateSamplingSessionResponse {
    /// Which one.
    pub sampling_session_id: SamplingSessionId,
}

body!(CreateSamplingSessionResponse, "create_sampling_session");
