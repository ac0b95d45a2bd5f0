//! The Tinker SDK for Rust.

mod training;

pub use training::custom_loss::CustomLoss;
