//! Sampling from a model.

pub(crate) mod cancel;
mod client;
mod compute_logprobs;
mod create;
mod feed;
mod handle;
mod retry;
mod sample;
mod score;

pub use client::SamplingClient;
pub use compute_logprobs::ComputeLogprobs;
pub use create::{CreateSamplingClient, SampleFrom};
pub use retry::RetryConfig;
pub use sample::Sample;
