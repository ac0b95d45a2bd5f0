//! The Tinker SDK for Rust.

mod training;
