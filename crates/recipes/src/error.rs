//! What can go wrong in a recipe.

use crate::data::Place;
use std::path::{Path, PathBuf};
use tinkrs::BoxError;

/// Anything that can go wrong in a recipe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service or the client refused or failed.
    #[error(transparent)]
    Client(#[from] tinkrs::Error),

    /// A value cannot be sent.
    #[error(transparent)]
    Invalid(#[from] tinkrs::InvalidInput),

    /// A file could not be read or written.
    #[error("could not {action} {}", path.display())]
    File {
        /// What was tried: `read`, `write`, `create`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },

    /// A line of a file does not say what it should.
    #[error("{}, line {line}: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },

    /// A row of a file of data does not say what it should.
    #[error("{place}: {message}")]
    Row {
        /// Where it is.
        place: Place,
        /// What is wrong with it.
        message: String,
    },

    /// A file or folder of data as a whole cannot be used.
    #[error("{}: {message}", path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },

    /// The tokenizer or the chat format refused or failed.
    #[error(transparent)]
    Chat(#[from] tinkrs_chat::Error),

    /// A conversation as a whole cannot be used.
    #[error("the conversation {problem}")]
    Conversation {
        /// What is wrong with it.
        problem: String,
    },

    /// A setting is out of range.
    #[error("{setting}: {problem}")]
    Setting {
        /// Which setting.
        setting: &'static str,
        /// What is wrong with it.
        problem: String,
    },

    /// A run folder has another run than the one to be resumed.
    #[error("the run in {} cannot be resumed: {problem}", folder.display())]
    Resume {
        /// The run folder.
        folder: PathBuf,
        /// Why.
        problem: String,
    },

    /// Another process is going on with the run in a folder.
    #[error("the run in {} is under way in another process", folder.display())]
    UnderWay {
        /// The run folder.
        folder: PathBuf,
    },

    /// The server's response lacks something that the recipe needs.
    #[error("the server's response has no {what}")]
    Missing {
        /// What is not there.
        what: &'static str,
    },

    /// The caller's own code failed: an environment or a grader.
    #[error("{what} failed")]
    Caller {
        /// Which part of the caller's code.
        what: &'static str,
        /// What it says.
        source: BoxError,
    },
}

impl Error {
    /// Returns a function that wraps an I/O error with what was tried on which file.
    pub(crate) fn file(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }

    /// Says which row of a file caused this.
    #[must_use]
    pub fn at(&self, place: &Place) -> Self {
        Self::Row {
            place: place.clone(),
            message: self.with_cause(),
        }
    }

    /// Writes the error with its cause, for a place where only a text fits.
    pub(crate) fn with_cause(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }

    pub(crate) fn resume(folder: &Path, problem: impl Into<String>) -> Self {
        Self::Resume {
            folder: folder.to_owned(),
            problem: problem.into(),
        }
    }

    pub(crate) fn setting(setting: &'static str, problem: impl Into<String>) -> Self {
        Self::Setting {
            setting,
            problem: problem.into(),
        }
    }
}
