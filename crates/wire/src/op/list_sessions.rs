//! `GET /sessions`: the sessions of an account.

use serde::{Deserialize, Serialize};
use tinkrs_types::SessionId;

/// A page of sessions, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListSessionsResponse {
    /// The sessions.
    pub sessions: Vec<SessionId>,
}
