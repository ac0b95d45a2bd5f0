//! `GET /studio/server`: what the server does.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the server does at this moment, and what the asker has on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerView {
    /// The version of the program.
    pub version: String,
    /// For how many seconds it has been up.
    pub uptime_seconds: f64,
    /// Its memory.
    pub memory: MemoryView,
    /// What waits.
    pub queues: QueueView,
    /// What was computed.
    pub throughput: ThroughputView,
    /// What the asker has on the disk.
    pub disk: DiskView,
    /// How many rules of faults are switched on.
    pub faults: u64,
    /// Whether only the keys of a file are taken.
    pub restricted: bool,
    /// What it serves.
    pub models: Vec<ModelView>,
    /// What somebody should look at.
    pub findings: Vec<Finding>,
}

/// Memory in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryView {
    /// What the server may use.
    pub limit: u64,
    /// What is used, and what for.
    pub uses: BTreeMap<String, u64>,
}

/// What waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueView {
    /// Training operations that were accepted and have not ended.
    pub training: u64,
    /// Those of them that have begun.
    pub training_begun: u64,
    /// All requests that were promised a result and have none.
    pub pending: u64,
    /// Open sessions.
    pub sessions: u64,
    /// How many owners have those.
    pub owners: u64,
    /// Runs that can be trained.
    pub runs: u64,
    /// Sampling sessions.
    pub samplers: u64,
    /// Open pages that hear of changes.
    pub watchers: u64,
}

/// What was computed since the server started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThroughputView {
    /// Tokens by what was done with them.
    pub tokens: BTreeMap<String, u64>,
}

/// Disk in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskView {
    /// How many bytes the asker's checkpoints take.
    pub checkpoints: u64,
    /// How many those are.
    pub checkpoint_count: u64,
    /// The database, of all owners.
    pub database: u64,
    /// How much may still be written; absent where the system does not say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub free: Option<u64>,
}

/// A model that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelView {
    /// Its name.
    pub name: String,
    /// The longest sequence.
    pub context: u64,
    /// The tokens that it knows.
    pub vocabulary: u64,
    /// The numeric path that it is computed with.
    pub numerics: String,
    /// The memory of its weights.
    pub weights_bytes: u64,
    /// Whether it can be talked to in messages.
    pub chat: bool,
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// `ok`, `note` or `warning`.
    pub level: String,
    /// What was found.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}
