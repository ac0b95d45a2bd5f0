//! Sampling: from prompts to tokens, many requests at a time.

#![allow(dead_code, reason = "the sampler that uses these parts follows")]

mod distribution;
mod generation;
mod prefix_cache;
mod request;
mod rng;
mod scheduler;
mod scoring;
mod stop;

pub use prefix_cache::WeightsId;
pub use request::SampleRequest;
pub use scheduler::{Limits, Ticket};
pub use stop::Detokenizer;
