//! Sampling: from prompts to tokens, many requests at a time.

mod active;
mod batch;
mod distribution;
mod generation;
mod prefix_cache;
mod request;
mod rng;
mod sampler;
mod scheduler;
mod scoring;
mod stop;

pub use prefix_cache::WeightsId;
pub use request::SampleRequest;
pub use sampler::{Event, Sampler, SamplerSettings};
pub use scheduler::{Limits, Ticket};
pub use stop::Detokenizer;
