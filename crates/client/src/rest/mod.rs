//! Metadata: training runs, checkpoints and sessions.

mod checkpoints;
mod client;
mod copy_weights;
pub mod download;
mod download_checkpoint;
mod import_weights;
mod pages;
mod sessions;
mod training_runs;

pub use checkpoints::ListUserCheckpoints;
pub use client::RestClient;
pub use copy_weights::CopyWeights;
pub use download_checkpoint::DownloadCheckpoint;
pub use pages::Pages;
pub use sessions::ListSessions;
pub use training_runs::ListTrainingRuns;

// All of it is public, and `docs/api` shows in a commit when there is more.
pub use tinkrs_types::rest::*;
pub use tinkrs_types::session::{
    AccessScope, FailureCategory, FailureReason, SearchCursor, SearchOwner, SessionInfo,
    SessionSearch, SessionSearchPage, SessionStatus, SessionSummary, StatusQuery,
};
