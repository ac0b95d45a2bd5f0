//! `POST /copy_weights`: copies a checkpoint, answered by [`tinkrs_types::rest::CopiedWeights`].

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::{ProjectId, SessionId};

/// Copies a checkpoint to a project.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CopyWeightsRequest {
    /// What to copy: a path, or on `tinkrs serve` also the name of a run.
    pub source_path: String,
    /// Where to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub destination_project_id: Option<ProjectId>,
    /// Another way to say where to. No client sends it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session_id: Option<SessionId>,
    /// Another way to say where to. No client sends it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model_seq_id: Option<u64>,
    /// How long the copy is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_seconds: Option<u64>,
    /// A credential to read the source with. Clients send a header instead.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub weights_access_token: Option<String>,
}

body!(CopyWeightsRequest);

impl std::fmt::Debug for CopyWeightsRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyWeightsRequest")
            .field("source_path", &self.source_path)
            .field("destination_project_id", &self.destination_project_id)
            .field("ttl_seconds", &self.ttl_seconds)
            .finish_non_exhaustive()
    }
}
