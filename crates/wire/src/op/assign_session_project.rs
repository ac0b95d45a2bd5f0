//! `PUT /sessions/{session_id}/project`: moves a session to a project.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::ProjectId;

/// Moves a session to a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AssignSessionProjectRequest {
    /// Which project.
    pub project_id: ProjectId,
}

body!(AssignSessionProjectRequest);
