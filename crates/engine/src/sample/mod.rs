//! Sampling: from prompts to tokens, many requests at a time.

#![allow(dead_code, reason = "the sampler that uses these parts follows")]

mod distribution;
mod rng;
mod stop;

pub use stop::Detokenizer;
