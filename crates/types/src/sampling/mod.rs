//! Sampling: parameters, options and results.

mod output;
mod params;
mod topk;

pub use output::{PromptAltTokens, SampleOutput, SampledSequence, StopReason};
pub use params::{SampleOptions, SamplingParams, Stop};
pub use topk::{TOPK_FILLER_LOGPROB, TopkLogprobs};
