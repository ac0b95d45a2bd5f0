//! `POST /create_session`: starts a session.

use crate::json::body;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tinkrs_types::{ProjectId, SessionId};

/// Starts a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateSessionRequest {
    /// Tags of the session.
    pub tags: Vec<String>,
    /// Labels of the session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user_metadata: Option<Map<String, Value>>,
    /// The level of the API that the client speaks.
    pub sdk_version: String,
    /// The project it belongs to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub project_id: Option<ProjectId>,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub display_name: Option<String>,
}

body!(CreateSessionRequest, "create_session");

/// A session that was started, with what the server wants its user to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateSessionResponse {
    /// Which session.
    pub session_id: SessionId,
    /// News.
    #[serde(default)]
    pub info_message: Option<String>,
    /// A warning.
    #[serde(default)]
    pub warning_message: Option<String>,
    /// An error that does not keep the session from working.
    #[serde(default)]
    pub error_message: Option<String>,
}

body!(CreateSessionResponse, "create_session");
