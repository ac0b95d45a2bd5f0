//! What a client may report about itself.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How serious an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    /// Of interest to developers.
    Debug,
    /// Of interest to users.
    Info,
    /// Something to look at.
    Warning,
    /// Something failed.
    Error,
    /// Nothing works.
    Critical,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TelemetryEventKind {
    /// A session started.
    SessionStart,
    /// A session ended.
    SessionEnd {
        /// How long it ran, as `H:MM:SS.ffffff`.
        duration: String,
    },
    /// An error reached the user.
    UnhandledException {
        /// Its type.
        error_type: String,
        /// Its message.
        error_message: String,
        /// Where it came from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceback: Option<String>,
    },
    /// Anything else.
    GenericEvent {
        /// Its name.
        event_name: String,
        /// Its data.
        #[serde(default)]
        event_data: Map<String, Value>,
    },
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TelemetryEvent {
    /// What happened.
    #[serde(flatten)]
    pub kind: TelemetryEventKind,
    /// A unique id.
    pub event_id: String,
    /// Its number in the session, from 0.
    pub event_session_index: u64,
    /// How serious it is.
    pub severity: Severity,
    /// When it happened.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub timestamp: Timestamp,
}

/// Events that are sent together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TelemetryBatch {
    /// The events.
    pub events: Vec<TelemetryEvent>,
    /// The operating system.
    pub platform: String,
    /// The client's version.
    pub sdk_version: String,
    /// The session, or `sessionless-` and a unique id.
    pub session_id: String,
    /// Names the client's process.
    #[serde(default)]
    pub process_uuid: String,
}
