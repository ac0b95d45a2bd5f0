//! The bodies of the Anthropic API, as its clients send and read them.
//!
//! Requests are read strictly, as all others: a member that nothing reads is refused by its name. Members that
//! cannot change what comes out, such as `metadata`, are declared and not looked at.

mod error;
mod event;
mod message;
mod request;

pub use error::{AnthropicError, AnthropicErrorBody};
pub use event::{BlockDelta, MessageChange, MessageEvent};
pub use message::{AnswerBlock, AnswerMessage, MessageUsage, StopReason, TokenCount};
pub use request::{
    BetaQuery, Block, BlockKind, Blocks, Caller, CallerKind, CountTokensRequest, MessagesRequest,
    OutputConfig, OutputFormat, RequestMessage, ThinkingConfig, Tool, ToolChoice,
};
