//! Answers as they are drawn.
//!
//! ```text
//! message_start
//! for each block: content_block_start, content_block_delta …, content_block_stop
//! message_delta, message_stop
//! ```
//!
//! `ping` comes behind the first `content_block_start`, and wherever nothing else has come for long; `error` ends a stream that
//! fails.

use super::{AnswerBlock, AnswerMessage, AnthropicError, MessageUsage, StopReason};
use serde::{Deserialize, Serialize};

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessageEvent {
    /// The message begins, without content.
    MessageStart {
        /// The message.
        message: AnswerMessage,
    },
    /// A block begins, without content.
    ContentBlockStart {
        /// Its place.
        index: u32,
        /// The block.
        content_block: AnswerBlock,
    },
    /// Something is new in a block.
    ContentBlockDelta {
        /// Its place.
        index: u32,
        /// What is new.
        delta: BlockDelta,
    },
    /// A block is complete.
    ContentBlockStop {
        /// Its place.
        index: u32,
    },
    /// The message has ended.
    MessageDelta {
        /// How.
        delta: MessageChange,
        /// How many tokens there are.
        usage: MessageUsage,
    },
    /// Nothing follows.
    MessageStop,
    /// The connection is alive.
    Ping,
    /// The message failed; nothing follows.
    Error {
        /// Why.
        error: AnthropicError,
    },
}

impl MessageEvent {
    /// Returns the name of the event, which is its type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
            Self::Error { .. } => "error",
        }
    }
}

/// What is new in a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BlockDelta {
    /// What is thought.
    ThinkingDelta {
        /// The thoughts.
        thinking: String,
    },
    /// The signature of thoughts, which is the last of them.
    SignatureDelta {
        /// Empty: thoughts are not signed here.
        signature: String,
    },
    /// What is said.
    TextDelta {
        /// The text.
        text: String,
    },
    /// Arguments of a call, as JSON text.
    InputJsonDelta {
        /// The next part of the text.
        partial_json: String,
    },
}

/// How a message ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageChange {
    /// Why.
    pub stop_reason: Option<StopReason>,
    /// The stop text, if one came.
    pub stop_sequence: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_has_its_name_as_its_type() {
        let events = [
            MessageEvent::Ping,
            MessageEvent::MessageStop,
            MessageEvent::ContentBlockStop { index: 1 },
            MessageEvent::ContentBlockDelta {
                index: 0,
                delta: BlockDelta::TextDelta {
                    text: "x".to_owned(),
                },
            },
        ];
        for event in events {
            let written = serde_json::to_value(&event).unwrap();
            assert_eq!(written["type"], json!(event.name()));
            assert_eq!(
                serde_json::from_value::<MessageEvent>(written).unwrap(),
                event
            );
        }
    }
}
