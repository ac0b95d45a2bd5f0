//! What is answered.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The next message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnswerMessage {
    /// Its id.
    pub id: String,
    /// `message`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `assistant`.
    pub role: String,
    /// What was asked.
    pub model: String,
    /// What is thought, said and called, in this order.
    pub content: Vec<AnswerBlock>,
    /// Why it ended; `null` at the beginning of a stream.
    pub stop_reason: Option<StopReason>,
    /// The stop text that ended it, if one did.
    pub stop_sequence: Option<String>,
    /// How many tokens there are.
    pub usage: MessageUsage,
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AnswerBlock {
    /// What is thought.
    Thinking {
        /// The thoughts.
        thinking: String,
        /// Empty: thoughts are not signed here.
        signature: String,
    },
    /// What is said.
    Text {
        /// The text.
        text: String,
        /// `null`.
        citations: Option<Value>,
    },
    /// A call.
    ToolUse {
        /// Its id.
        id: String,
        /// What is called.
        name: String,
        /// Its arguments.
        input: Value,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it.
    EndTurn,
    /// It has as many tokens as were asked for.
    MaxTokens,
    /// It has as many tokens as the model's context has room for, which are fewer than were asked for.
    ModelContextWindowExceeded,
    /// A stop text came.
    StopSequence,
    /// The model calls tools.
    ToolUse,
}

/// How many tokens a request had, and how many it made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageUsage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: u64,
    /// 0: what is cached is not counted apart.
    pub cache_creation_input_tokens: u64,
    /// Tokens of the prompt that were not computed again.
    pub cache_read_input_tokens: u64,
    /// Tokens that were drawn.
    pub output_tokens: u64,
}

impl MessageUsage {
    /// Counts the tokens of a request. `cached` of the prompt's are read from the prefix cache.
    pub fn new(prompt: u64, cached: u64, drawn: u64) -> Self {
        Self {
            input_tokens: prompt.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: drawn,
        }
    }
}

/// How many tokens a conversation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenCount {
    /// How many.
    pub input_tokens: u64,
}
