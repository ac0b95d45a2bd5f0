//! Sampling: from prompts to tokens, many requests at a time.

#![allow(dead_code, reason = "the sampler that uses these parts follows")]

mod distribution;
mod prefix_cache;
mod rng;
mod scheduler;
mod stop;

pub use scheduler::{Limits, Ticket};
pub use stop::Detokenizer;
