//! The settings of a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tinkrs_types::protocol::ClientConfig;

/// How a server works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Folder for everything that survives the server.
    pub data: PathBuf,
    /// How many training operations of a base model may wait. Default 1024.
    pub queued_operations: usize,
    /// How many requests for samples of a base model may wait. Default 4096.
    pub queued_samples: usize,
    /// How long operations wait for one with a lower sequence number. Default five and a half minutes:
    /// clients retry a submission for five.
    pub gap_timeout: Duration,
    /// How long a poll waits for a result. Default 30 seconds; clients hang up after 45.
    pub poll_timeout: Duration,
    /// How long a session lives without a heartbeat of its client. Default five minutes.
    pub session_timeout: Duration,
    /// How long a result is kept after it was fetched. Default five minutes.
    pub keep_fetched: Duration,
    /// How long a result is kept that was never fetched. Default a day.
    pub keep_unfetched: Duration,
    /// Results of more bytes are announced before they are sent, to clients that ask for that.
    /// Default a mebibyte.
    pub inline_bytes: u64,
    /// A run's state is saved when its operations since the last snapshot took this long: what a
    /// restart has to repeat. Default five seconds.
    pub snapshot_interval: Duration,
    /// A run's state is also saved after this many operations. Default 64.
    pub snapshot_operations: u32,
    /// File of accepted keys, one on a line, each with an optional name behind it. Without one, any
    /// well-formed key is accepted and is an owner of its own.
    pub key_file: Option<PathBuf>,
    /// File of faults to inject, for testing clients.
    pub faults: Option<PathBuf>,
    /// What clients are told to do. By default they exchange their keys for tokens, and do the rest
    /// as they do by themselves.
    pub client: ClientConfig,
}

impl Settings {
    /// Makes the default settings with this data folder.
    pub fn new(data: impl AsRef<Path>) -> Self {
        let mut client = ClientConfig::default();
        client.pjwt_auth_enabled = true;
        Self {
            data: data.as_ref().to_owned(),
            queued_operations: 1024,
            queued_samples: 4096,
            gap_timeout: Duration::from_secs(330),
            poll_timeout: Duration::from_secs(30),
            session_timeout: Duration::from_secs(300),
            keep_fetched: Duration::from_secs(300),
            keep_unfetched: Duration::from_secs(24 * 3600),
            inline_bytes: 1 << 20,
            snapshot_interval: Duration::from_secs(5),
            snapshot_operations: 64,
            key_file: None,
            faults: None,
            client,
        }
    }
}
