//! Sampling: from prompts to tokens, for many requests and adapters at a time.
//!
//! A [`Sampler`] takes [`SampleRequest`]s at any time and computes in steps. In each step every running
//! sample gets one token and every waiting prompt advances by a piece, in one pass of the model. Reading
//! order:
//!
//! 1. [`sampler`]: the public face, and the step;
//! 2. `request`: what a request may hold, checked once;
//! 3. `scheduler`: who runs next, without knowing about models;
//! 4. `active` and `batch`: a request's state, and its way through the model and back;
//! 5. `generation` and `scoring`: what is made of logits, for samples and for prompts;
//! 6. `distribution`, `rng` and `stop`: one token at a time;
//! 7. `prefix_cache`: what requests share; `draft`: guesses that a step reads ahead.
//!
//! Samples are reproducible: the same weights, prompt, parameters and seed give the same tokens and the
//! same bits of log-probabilities, whatever else runs, with or without the prefix cache, on any number of
//! threads. A training pass over the same tokens gives the same log-probabilities.

mod active;
mod batch;
mod distribution;
mod draft;
mod generation;
mod prefix_cache;
mod request;
mod rng;
pub mod sampler;
mod scheduler;
mod scoring;
mod stop;

pub use prefix_cache::WeightsId;
pub use request::SampleRequest;
pub use sampler::{Event, Sampler, SamplerSettings};
pub use scheduler::Ticket;
pub use stop::Detokenizer;
