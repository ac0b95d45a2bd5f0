//! The bodies of the OpenAI API, as its clients send and read them.
//!
//! Requests are read strictly, as all others: a member that nothing reads is refused by its name. Members that
//! cannot change what comes out, such as `user`, are declared and not looked at. Members that the OpenAI API does not have
//! and other servers do (`top_k`, `min_p`, `return_token_ids`, …) have the names that vLLM gave them.

pub mod chat;
pub mod completions;
mod error;
pub mod models;
pub mod responses;
mod sampling;

pub use error::{OpenAiError, OpenAiErrorBody};
pub use sampling::{SamplingMembers, StopTexts, StreamOptions};

use serde::{Deserialize, Serialize};

/// How many tokens a request had, and how many it made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenUsage {
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Tokens that were drawn.
    pub completion_tokens: u64,
    /// Both together.
    pub total_tokens: u64,
    /// What there is to know of the prompts' tokens.
    pub prompt_tokens_details: PromptTokensDetails,
}

impl TokenUsage {
    /// Counts the tokens of a request. `cached` of the prompts' are read from the prefix cache.
    pub fn new(prompt: u64, cached: u64, drawn: u64) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: drawn,
            total_tokens: prompt + drawn,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: cached,
            },
        }
    }
}

/// What there is to know of the prompts' tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptTokensDetails {
    /// How many were not computed again.
    pub cached_tokens: u64,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop text came.
    Stop,
    /// It has as many tokens as it may.
    Length,
    /// The model calls tools.
    ToolCalls,
}
