//! LoRA training and sampling of decoder-only language models on the CPU.

pub mod config;
pub mod error;
mod files;
pub mod loss;
pub mod optim;
pub mod peft;
pub mod sample;
pub mod weights;

pub use config::ModelConfig;
pub use error::Error;
