//! Comparison of the engine with what PyTorch, `transformers`, `peft` and `gguf` computed.
//!
//! The numbers, and the scripts that made them, are in `tests/reference`.
#![expect(
    clippy::print_stdout,
    reason = "tests print the differences they saw, and what they skipped"
)]

mod adamw;
mod forward;
mod gguf;
mod memory;
mod numerics;
mod quantised;
mod real_models;
mod reference;
mod sampler;
mod saved_state;
mod tiny_models;
mod training;
