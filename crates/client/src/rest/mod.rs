//! Metadata: training runs, checkpoints, sessions, and what administrators read.

mod admin;
mod checkpoints;
mod client;
mod copy_weights;
pub mod download;
mod download_checkpoint;
mod import_weights;
mod pages;
mod sessions;
mod training_runs;

pub use admin::AdminClient;
pub use client::RestClient;
pub use copy_weights::CopyWeights;
pub use download_checkpoint::DownloadCheckpoint;
pub use pages::Pages;
