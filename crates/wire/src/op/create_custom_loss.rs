//! `POST /create_custom_loss`: uploads a loss as a graph.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::custom_loss::{CustomLossGraph, CustomLossInput};
use tinkrs_types::{LossId, SessionId};

/// Uploads a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateCustomLossRequest {
    /// The session that may use it.
    pub session_id: SessionId,
    /// Its number in that session.
    pub custom_loss_seq_id: u64,
    /// Its name.
    pub name: String,
    /// Its inputs, `logprobs` first.
    pub inputs: Vec<CustomLossInput>,
    /// Its operations.
    pub graph: CustomLossGraph,
}

body!(CreateCustomLossRequest, "create_custom_loss");

/// A loss that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateCustomLossResult {
    /// Which one.
    pub loss_id: LossId,
}

body!(CreateCustomLossResult, "create_custom_loss");
