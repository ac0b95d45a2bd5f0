//! LoRA training and sampling of decoder-only language models on the CPU.

pub mod config;
pub mod error;
mod files;
pub mod loss;
pub mod optim;
pub mod peft;
pub mod sample;
pub mod weights;

pub mod adapter;
mod kernels;
mod model;
mod threads;
mod train;

pub use adapter::Adapter;
pub use config::ModelConfig;
pub use error::Error;
pub use model::{Feed, Hidden, KvCache, Model, Precision};
pub use threads::Threads;
pub use tinkrs_types as types;
pub use train::{FullWeights, TrainState, TrainingRun};
