//! `POST /session_heartbeat`: says that a session's client still runs.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::SessionId;

/// Says that a session's client still runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionHeartbeatRequest {
    /// Which session.
    pub session_id: SessionId,
}

body!(SessionHeartbeatRequest, "session_heartbeat");

/// Heard. A finished session is answered by status 410 instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionHeartbeatResponse {}

body!(SessionHeartbeatResponse, "session_heartbeat");
