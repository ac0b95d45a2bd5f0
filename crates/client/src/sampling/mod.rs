//! Sampling from a model: the client, its requests, what they take and what they give.

pub(crate) mod cancel;
mod client;
mod completion_feed;
mod compute_logprobs;
mod create;
mod handle;
mod retry;
mod sample;
mod score;

pub(crate) use client::SamplerOptions;
pub use client::SamplingClient;
pub use compute_logprobs::ComputeLogprobs;
pub use create::{CreateSamplingClient, SampleFrom};
pub use retry::RetryConfig;
pub use sample::Sample;

pub use tinkrs_types::sampling::{
    PromptAltTokens, SampleOptions, SampleOutput, SampledSequence, SamplingParams, Stop,
    StopReason, TOPK_FILLER_LOGPROB, TopkLogprobs,
};
