//! The Tinker SDK for Rust.
