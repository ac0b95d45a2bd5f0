//! `PUT …/ttl`: says how long a checkpoint is kept.

use crate::json::body;
use serde::{Deserialize, Serialize};

/// Says how long a checkpoint is kept. Unlike elsewhere, null is written: it means "for ever".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetCheckpointTtlRequest {
    /// How long from now.
    pub ttl_seconds: Option<u64>,
}

body!(SetCheckpointTtlRequest);
