//! What can go wrong with tokenizers and chat formats.

use std::path::{Path, PathBuf};
use tinkrs_types::InvalidInput;

/// The cause of an error, of whatever type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Anything that can go wrong with tokenizers and chat formats.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("could not read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },

    /// A file is there, but is not a tokenizer that can be used.
    #[error("{} cannot be read", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: BoxError,
    },

    /// A tokenizer's file asks for something that is not supported.
    #[error("{}: {what} is not supported; supported: {supported}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it asks for.
        what: String,
        /// What could be read instead.
        supported: &'static str,
    },

    /// A text could not be tokenized, or tokens not put together to text.
    #[error("the text could not be tokenized")]
    Tokenize(#[source] BoxError),

    /// The model belongs to no family whose chat format is known.
    #[error("model: the chat format of `{model}` is not known: use its template")]
    UnknownFormat {
        /// The model's name.
        model: String,
    },

    /// The tokenizer lacks a token that the chat format is made of.
    #[error("the tokenizer has no token `{token}`, which {format} needs: is it the model's own?")]
    MissingToken {
        /// The token's spelling.
        token: String,
        /// The chat format.
        format: &'static str,
    },

    /// The chat format has no way to write what was asked for.
    #[error("{format} has no {what}")]
    Option {
        /// The chat format.
        format: &'static str,
        /// What it lacks.
        what: &'static str,
    },

    /// A message cannot be written in this chat format.
    #[error("message {}: {problem}", index + 1)]
    Message {
        /// The message, counted from 0.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },

    /// A conversation as a whole cannot be used.
    #[error("the conversation {problem}")]
    Conversation {
        /// What is wrong with it.
        problem: String,
    },

    /// A conversation has more text than [`RenderOptions::max_text_bytes`](crate::RenderOptions::max_text_bytes) allows.
    #[error("the conversation has {found} bytes of text, and {most} are allowed")]
    TooLong {
        /// How many bytes it has.
        found: usize,
        /// How many it may have.
        most: usize,
    },

    /// A chat template failed.
    #[error("the chat template failed")]
    Template(#[source] BoxError),

    /// A value cannot be sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
}

impl Error {
    /// Returns a function that wraps an I/O error with the file that could not be read.
    pub(crate) fn file(path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File { path, source }
    }

    pub(crate) fn tokenizer(path: &Path, source: impl Into<BoxError>) -> Self {
        Self::Tokenizer {
            path: path.to_owned(),
            source: source.into(),
        }
    }
}
