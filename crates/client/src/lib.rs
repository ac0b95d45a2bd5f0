//! The Tinker SDK for Rust.

pub mod auth;
mod training;

pub use training::custom_loss::CustomLoss;
