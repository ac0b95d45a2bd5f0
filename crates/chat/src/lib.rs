//! Tokenizers and chat formats: conversations to tokens and back.
//!
//! ```
//! use tinkrs_chat::{Conversation, Message, Renderer, Tokenizer, TrainOn, format::ChatMl};
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
//!
//! let renderer = Renderer::new(Tokenizer::from_path(path)?, ChatMl)?;
//! let chat = Conversation::from([Message::user("2 + 2?"), Message::assistant("4")]);
//!
//! // To train: tokens, and a weight of 1 on what the assistant writes.
//! let example = renderer.example(&chat, TrainOn::LastAssistantMessage)?;
//! let datum = example.to_datum()?;
//!
//! // To sample: the prompt up to where the assistant speaks, and where to stop.
//! let prompt = renderer.prompt(&Conversation::from([Message::user("2 + 2?")]))?;
//! assert!(example.tokens.starts_with(&prompt));
//!
//! // To read an answer.
//! let answer = &example.tokens[prompt.len()..];
//! assert_eq!(renderer.parse(answer)?.message, Message::assistant("4"));
//! # Ok::<(), tinkrs_chat::Error>(())
//! ```
//!
//! Three promises hold for every format. What users say never turns into control tokens
//! ([`Vocabulary`]). No token is half prompt, half answer ([`Script`]). What is trained on is exactly
//! what the model will have to write, its end of message included ([`Example`]).
//!
//! - [`Tokenizer`] loads `tokenizer.json`, the tokenizer inside a GGUF file, and tiktoken files;
//!   [`HubFolders`] says where the Hub's own tool has put some already;
//! - [`format`](mod@format) has the chat formats, and how to add one;
//! - [`Renderer`] joins the two; [`AnswerStream`] reads an answer while it is generated.

mod error;
mod hub;
mod tokenizer;

mod json;
mod message;

mod plain_text;
mod script;
mod vocabulary;

pub mod format;
mod mask;
mod renderer;
mod response;

mod call_reader;
mod stream;
mod text_stream;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use call_reader::{CallPart, CallReader};
pub use error::{BoxError, Error};
pub use format::{Effort, Format, RenderOptions};
pub use hub::HubFolders;
pub use json::Json;
pub use mask::{Example, TrainOn};
pub use message::{Conversation, Message, Role, ToolCall};
pub use renderer::Renderer;
pub use response::Response;
pub use script::{Content, Rendered, Script};
pub use stream::{AnswerStream, Delta};
pub use text_stream::TextStream;
pub use tokenizer::{TokenBytes, Tokenizer};
pub use vocabulary::{Control, Vocabulary};
