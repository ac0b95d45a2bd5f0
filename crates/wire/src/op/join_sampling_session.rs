//! `POST /join_sampling_session`: numbers one more client of a sampling session.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::SamplingSessionId;

/// Asks for a number among the clients of a sampling session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JoinSamplingSessionRequest {
    /// Which sampling session.
    pub sampling_session_id: SamplingSessionId,
}

body!(JoinSamplingSessionRequest, "join_sampling_session");

/// The number of the new client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JoinSamplingSessionResponse {
    /// Unique in the sampling session, and never 0: that is the original client.
    pub client_counter: u64,
}

body!(JoinSamplingSessionResponse, "join_sampling_session");
