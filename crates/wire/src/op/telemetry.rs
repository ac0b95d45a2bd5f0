//! `POST /telemetry`: what a client reports about itself, as [`tinkrs_types::protocol::TelemetryBatch`].

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::protocol::TelemetryBatch;

body!(TelemetryBatch);

/// The server's word that it took a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TelemetryResponse {
    /// `accepted`.
    pub status: String,
}
