//! Training loops for Tinker as library functions.

mod error;

pub mod renderer;

pub mod data;
mod learning_rate;
pub mod run;

pub mod distill;
pub mod dpo;
pub mod rl;
pub mod sft;

pub mod evaluate;

#[cfg(test)]
mod testing;

pub use error::Error;
pub use learning_rate::{Decay, Schedule, lora_learning_rate};
