//! Chat formats: conversations to tokens and back.
//!
//! ```
//! use tinkrs_recipes::renderer::{Conversation, Format, Message, Renderer, TrainOn};
//! # let tokenizer = tinkrs::Tokenizer::from_path(
//! #     concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json"))?;
//! let renderer = Renderer::new(tokenizer, Format::ChatMl)?;
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
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Three promises hold for every format. What users say never turns into control tokens
//! (`vocabulary`). No token is half prompt, half answer (`script`). What is trained on is exactly
//! what the model will have to write, its end of message included (`mask`).

mod chatml;
mod json;
mod llama3;
mod mask;
mod message;
mod parse;
mod plain;
mod qwen3;
mod role_colon;
mod script;
mod stream;
mod template;
mod vocabulary;

pub use json::Json;
pub use mask::{Example, TrainOn};
pub use message::{Conversation, Message, Role, ToolCall};
pub use parse::Response;
pub use script::Rendered;
pub use stream::AnswerStream;
pub use template::ChatTemplate;
pub use vocabulary::Vocabulary;

use crate::Error;
use script::Script;
use std::path::Path;
use std::sync::Arc;
use tinkrs::sampling::Stop;
use tinkrs::{SamplingParams, Tokenizer};

/// How a model wants conversations written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Format {
    /// `User: …`, for base models. It has no control tokens, tools or thinking.
    RoleColon,
    /// `<|im_start|>user …`, with tools as Hermes models write them.
    ChatMl,
    /// `<|start_header_id|>user<|end_header_id|> …`
    Llama3,
    /// ChatML with thinking.
    Qwen3 {
        /// Whether the model may think before it answers.
        thinking: bool,
    },
    /// The model's own template.
    Template(Box<ChatTemplate>),
}

impl Format {
    /// Returns the format of a model of a family that we know, from the name that the hosted
    /// service has for it.
    ///
    /// Base models get [`RoleColon`](Self::RoleColon). For a family that is not known there is no
    /// good guess: use the model's own template ([`Renderer::from_folder`]).
    pub fn of_model(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let is = |part: &str| name.contains(part);
        if is("base") {
            Some(Self::RoleColon)
        } else if is("llama-3") {
            Some(if is("instruct") {
                Self::Llama3
            } else {
                Self::RoleColon
            })
        } else if is("qwen3-") && !is("instruct") {
            Some(Self::Qwen3 { thinking: true })
        } else if is("qwen2") || is("qwen3-") || is("smollm2") || is("minimind2") {
            // Those of Qwen3 that are only instructed have no thinking in their template.
            Some(Self::ChatMl)
        } else {
            None
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::RoleColon => "plain text",
            Self::ChatMl => "ChatML",
            Self::Llama3 => "Llama 3",
            Self::Qwen3 { .. } => "Qwen3",
            Self::Template(_) => "the chat template",
        }
    }

    fn needs(&self) -> &'static [&'static str] {
        match self {
            Self::RoleColon | Self::Template(_) => &[],
            Self::ChatMl | Self::Qwen3 { .. } => &[chatml::START, chatml::END],
            Self::Llama3 => &[
                llama3::BEGIN,
                llama3::END,
                "<|start_header_id|>",
                "<|end_header_id|>",
            ],
        }
    }
}

/// Writes and reads conversations in the format of one model.
///
/// It is cheap to clone and can be used from any thread.
#[derive(Clone, Debug)]
pub struct Renderer {
    vocabulary: Vocabulary,
    format: Arc<Format>,
    /// The tokens that end an answer.
    stops: Vec<u32>,
    /// The token that the tokenizer puts in front of any text, if it does.
    begin: Option<u32>,
}

impl Renderer {
    /// Joins a tokenizer and a format.
    ///
    /// # Errors
    /// If the tokenizer lacks a control token that the format is made of.
    pub fn new(tokenizer: impl Into<Arc<Tokenizer>>, format: Format) -> Result<Self, Error> {
        let vocabulary = Vocabulary::new(tokenizer.into());
        let missing = |token: &str| Error::MissingToken {
            token: token.to_owned(),
            format: format.name(),
        };
        for token in format.needs() {
            vocabulary.control(token).ok_or_else(|| missing(token))?;
        }
        let stops = match &format {
            Format::RoleColon => Vec::new(),
            Format::ChatMl | Format::Qwen3 { .. } => vec![chatml::END],
            Format::Llama3 => vec![llama3::END],
            Format::Template(_) => Vec::new(),
        };
        let mut stops: Vec<u32> = stops
            .into_iter()
            .filter_map(|s| vocabulary.control(s))
            .collect();
        if let Format::Template(template) = &format {
            stops = template.stops(&vocabulary);
            if stops.is_empty() {
                return Err(missing("eos_token"));
            }
        }
        let begin = match vocabulary.tokenizer().encode("")?.as_slice() {
            [begin] => Some(*begin),
            _ => None,
        };
        Ok(Self {
            vocabulary,
            format: Arc::new(format),
            stops,
            begin,
        })
    }

    /// Joins the tokenizer of a model and its format.
    ///
    /// # Errors
    /// If the model's family is not known, and as [`new`](Self::new).
    pub fn of_model(model: &str, tokenizer: impl Into<Arc<Tokenizer>>) -> Result<Self, Error> {
        let unknown = || {
            let problem = format!("the chat format of `{model}` is not known: use its template");
            Error::setting("model", problem)
        };
        Self::new(tokenizer, Format::of_model(model).ok_or_else(unknown)?)
    }

    /// Loads the tokenizer and the chat template of a model's folder.
    ///
    /// # Errors
    /// If the folder lacks either, or they do not fit each other.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let tokenizer = Tokenizer::from_path(folder.as_ref())?;
        let template = ChatTemplate::from_folder(folder)?;
        Self::new(tokenizer, Format::Template(Box::new(template)))
    }

    /// Returns the vocabulary, to encode and decode text outside of a conversation.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Returns the tokens of a text outside of a conversation, as a document begins: behind the
    /// token that the tokenizer puts there, if it does.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text.
    pub fn document(&self, text: &str) -> Result<Vec<u32>, Error> {
        let text = self.vocabulary.encode_text(text)?;
        Ok(self.begin.into_iter().chain(text).collect())
    }

    /// Returns what a model wrote behind a document, without the token that ends it.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn continuation(&self, tokens: &[u32]) -> Result<String, Error> {
        let ends = |token: &u32| self.stops.contains(token);
        let end = tokens.iter().position(ends).unwrap_or(tokens.len());
        self.vocabulary.decode(&tokens[..end])
    }

    /// Returns the format.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Returns the tokens of a conversation, up to where the assistant is to speak.
    ///
    /// # Errors
    /// If the format cannot write the conversation.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Vec<u32>, Error> {
        Ok(self.render(conversation, true)?.tokens)
    }

    /// Returns the tokens of a conversation and how much each counts in training.
    ///
    /// # Errors
    /// If the format cannot write the conversation, cannot tell where an answer that counts is,
    /// or there is none.
    pub fn example(
        &self,
        conversation: &Conversation,
        train_on: TrainOn,
    ) -> Result<Example, Error> {
        Example::new(self.render(conversation, false)?, conversation, train_on)
    }

    /// Returns the tokens of a conversation and who made each; `open` begins an answer.
    ///
    /// # Errors
    /// If the format cannot write the conversation.
    pub fn render(&self, conversation: &Conversation, open: bool) -> Result<Rendered, Error> {
        if conversation.messages.is_empty() {
            return Err(Error::Conversation {
                problem: "has no messages".to_owned(),
            });
        }
        let mut script = Script::new(&self.vocabulary);
        match &*self.format {
            Format::RoleColon => role_colon::write(&mut script, conversation, open, self.begin)?,
            Format::ChatMl => chatml::write(&mut script, conversation, open),
            Format::Llama3 => llama3::write(&mut script, conversation, open)?,
            Format::Qwen3 { thinking } => qwen3::write(&mut script, conversation, open, *thinking),
            Format::Template(template) => {
                template.write(
                    &mut script,
                    &self.vocabulary,
                    &self.stops,
                    conversation,
                    open,
                )?;
            }
        }
        script.finish()
    }

    /// Returns what ends an answer.
    pub fn stop(&self) -> Stop {
        match &*self.format {
            Format::RoleColon => Stop::Text(role_colon::STOP.to_owned()),
            _ => Stop::AnyToken(self.stops.clone()),
        }
    }

    /// Returns parameters to sample an answer with.
    pub fn sampling_params(&self, max_tokens: u32) -> SamplingParams {
        SamplingParams {
            stop: Some(self.stop()),
            ..SamplingParams::new(max_tokens)
        }
    }

    /// Reads what a model wrote behind a prompt.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn parse(&self, tokens: &[u32]) -> Result<Response, Error> {
        self.parse_behind("", tokens)
    }

    /// Reads what a model wrote behind a text that the prompt had begun its answer with.
    fn parse_behind(&self, begun: &str, tokens: &[u32]) -> Result<Response, Error> {
        let ends = |token: &u32| match &*self.format {
            // Base models end documents rather than messages.
            Format::RoleColon => self.vocabulary.is_control(*token),
            _ => self.stops.contains(token),
        };
        let end = tokens.iter().position(ends);
        let tokens = &tokens[..end.unwrap_or(tokens.len())];
        let text = format!("{begun}{}", self.vocabulary.decode(tokens)?);
        Ok(match &*self.format {
            Format::RoleColon => match text.split_once(role_colon::STOP) {
                Some((said, _)) => Response::from_words(said, true),
                None => Response::from_words(&text, end.is_some()),
            },
            Format::Llama3 => Response::from_json_or_text(&text, end.is_some()),
            Format::ChatMl | Format::Qwen3 { .. } | Format::Template(_) => {
                Response::from_tagged_text(&text, end.is_some())
            }
        })
    }
}

#[cfg(test)]
mod tests;
