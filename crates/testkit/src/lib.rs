//! Shared fixtures for the tests of the workspace. Never published.
//!
//! [`ScriptedServer`] is a small Tinker server for tests of clients: correct unless told to
//! misbehave, with numbers that can be checked by hand ([`arithmetic`]). [`null_server`] is one to
//! measure clients against: it answers at once. [`FakeBackend`] lets a real server run without
//! weights. [`skip`] says what a test does without.

pub mod arithmetic;
pub mod fake_backend;
pub mod null_server;
pub mod scripted;
pub mod skip;

pub use fake_backend::FakeBackend;
pub use scripted::{Gate, ScriptedServer};
