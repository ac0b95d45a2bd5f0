//! Comparison of the engine with what PyTorch, `transformers`, `peft` and `gguf` computed.
//!
//! The numbers, and the scripts that made them, are in `tests/reference`.

mod adamw;
mod gguf;
mod reference;
mod tiny_models;
