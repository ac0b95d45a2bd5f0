//! `POST /v1/completions`: text that goes on from a prompt.

use super::sampling::request;
use super::{FinishReason, TokenUsage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What comes before the text that is drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "expected a text, a list of texts, a list of token ids or a list of such lists"
)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// A text that is already tokens.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several texts that are already tokens.
    TokenLists(Vec<Vec<u32>>),
}

request! {
    /// Text that goes on from a prompt.
    pub struct CompletionRequest {
        /// What comes before.
        pub prompt: Prompt,
        /// The most tokens to draw for each. Default 16. With `echo`, 0 draws nothing.
        pub max_tokens: u32,
        /// How many to draw of which the `n` likeliest are answered, at least `n`.
        pub best_of: u32,
        /// Whether the answer begins with the prompt.
        pub echo: bool,
        /// Reports the log-probability of each token, and this many of the likeliest tokens at its place, 0 to 20.
        pub logprobs: u32,
    }
}

/// Text that goes on from a prompt, or a part of it as it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Completion {
    /// Its id.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// When it was asked for, in seconds since 1970.
    pub created: i64,
    /// What was asked.
    pub model: String,
    /// The texts.
    pub choices: Vec<CompletionChoice>,
    /// How many tokens there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
}

/// One text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompletionChoice {
    /// Its place among the answers to all prompts.
    pub index: u32,
    /// The text.
    pub text: String,
    /// The log-probabilities, if they were asked for.
    pub logprobs: Option<TextLogprobs>,
    /// Why it ended; `null` in a part of a stream that is not the last.
    pub finish_reason: Option<FinishReason>,
    /// The tokens, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// The tokens of its prompt, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Tokens with their log-probabilities, in four lists of the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TextLogprobs {
    /// The texts of the tokens.
    pub tokens: Vec<String>,
    /// Their log-probabilities; `null` for the first token of a prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens at each place, the token that is there included.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Where each token's text begins, in characters.
    pub text_offset: Vec<u64>,
}
