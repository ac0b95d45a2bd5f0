//! `POST /sessions/{session_id}/finish`: ends a session. The first reason given wins.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::session::FinishReason;

/// Ends a session. Unlike elsewhere, a missing detail is written as null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FinishSessionRequest {
    /// How it ended.
    pub reason: FinishReason,
    /// Why.
    #[serde(default)]
    pub detail: Option<String>,
}

body!(FinishSessionRequest);
