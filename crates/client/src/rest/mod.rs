//! Metadata: training runs, checkpoints and sessions.

mod archive;
mod checkpoints;
mod client;
mod copy_weights;
pub mod download;
mod download_checkpoint;
mod import_weights;
mod names;
mod pages;
mod scoped;
mod sessions;
mod training_runs;

pub use checkpoints::*;
pub use client::*;
pub use copy_weights::*;
pub use download_checkpoint::*;
pub use import_weights::*;
pub use pages::*;
pub use scoped::*;
pub use sessions::*;
pub use training_runs::*;
