//! The result of sampling.

use super::TopkLogprobs;
use crate::{SequenceId, TensorData};
use serde::{Deserialize, Serialize};

/// Why generation of a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// A stop token or text was generated.
    Stop,
    /// `max_tokens` were generated.
    Length,
}

/// One sampled sequence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SampledSequence {
    /// Names the sequence in provenance spans. It comes with the promise, not with the result.
    pub id: Option<SequenceId>,
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// The log-probability of each, if the server computed them.
    pub logprobs: Option<Vec<f32>>,
    /// Why generation ended.
    pub stop_reason: StopReason,
    /// The likeliest tokens at each position, if they were asked for.
    pub topk_logprobs: Option<TopkLogprobs>,
}

impl SampledSequence {
    /// Makes a sequence of tokens without anything else known about them.
    pub fn new(tokens: Vec<u32>, stop_reason: StopReason) -> Self {
        Self {
            id: None,
            tokens,
            logprobs: None,
            stop_reason,
            topk_logprobs: None,
        }
    }
}

/// Draws at each prompt position after the first: two `[prompt length - 1, k]` tensors.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PromptAltTokens {
    /// The drawn tokens (`int64`).
    pub tokens: TensorData,
    /// Their log-probabilities (`float32`).
    pub logprobs: TensorData,
}

impl PromptAltTokens {
    /// Joins the two tensors.
    pub fn new(tokens: TensorData, logprobs: TensorData) -> Self {
        Self { tokens, logprobs }
    }
}

/// The result of sampling.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SampleOutput {
    /// The sequences, as many as were asked for.
    pub sequences: Vec<SampledSequence>,
    /// The log-probability of each prompt token; NaN where none was computed.
    pub prompt_logprobs: Option<Vec<f32>>,
    /// The likeliest tokens at each prompt position.
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    /// How many prompt tokens came from the prefix cache.
    pub prompt_cache_hit_tokens: u32,
    /// The log-probabilities of the tokens that were named; 0 where none was.
    pub target_prompt_logprobs: Option<TensorData>,
    /// The draws that were asked for.
    pub prompt_alt_tokens: Option<PromptAltTokens>,
}

impl SampleOutput {
    /// Returns the log-probability of a prompt token, if one was computed.
    pub fn prompt_logprob(&self, position: usize) -> Option<f32> {
        self.prompt_logprobs
            .as_ref()?
            .get(position)
            .copied()
            .filter(|logprob| !logprob.is_nan())
    }
}
