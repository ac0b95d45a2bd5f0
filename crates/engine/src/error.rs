//! The one error type of the crate.
//!
//! A message says what was being done, to which tensor or datum, what was found and what was
//! expected, so that a wrong shape or a bad token is understood without a debugger.

use std::path::PathBuf;

/// Anything that can go wrong while loading, training or sampling a model.
///
/// No error leaves a model half changed: whatever was refused has had no effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request holds a value that the API does not allow.
    #[error(transparent)]
    InvalidInput(#[from] tinkrs_types::InvalidInput),

    /// A file or folder could not be read or written.
    #[error("could not {operation} {}", path.display())]
    Io {
        /// What was being done, as a verb: `read`, `map`, `rename`.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },

    /// A JSON document could not be understood.
    #[error("{document} is not valid JSON of the expected form")]
    Json {
        /// The document: a path, or a name such as `config.json`.
        document: String,
        /// The cause, with line and column.
        source: serde_json::Error,
    },

    /// A file's contents contradict its format.
    #[error("{document} is malformed: {reason}")]
    Malformed {
        /// The file.
        document: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The model needs something that the engine does not implement.
    #[error("unsupported {option} `{found}`: the engine supports {supported}")]
    Unsupported {
        /// The option, spelled as in the file that holds it.
        option: String,
        /// Its value.
        found: String,
        /// The values that would have been accepted.
        supported: &'static str,
    },

    /// A setting is missing, out of range, or contradicts another one.
    #[error("invalid {option}: {reason}")]
    InvalidOption {
        /// The setting, spelled as the caller spells it.
        option: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A tensor that the model needs is not there.
    #[error("tensor `{tensor}` is missing from {origin}")]
    MissingTensor {
        /// The tensor's Hugging Face name.
        tensor: String,
        /// Where it was looked for.
        origin: String,
    },

    /// A tensor does not have the shape that the model needs.
    #[error("{tensor}: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// The shape that the model needs.
        expected: Vec<usize>,
        /// The shape that was found.
        got: Vec<usize>,
    },

    /// A token is not in the model's vocabulary.
    #[error(
        "datum {datum}, position {position}: token {token} is outside the vocabulary of {vocab}"
    )]
    Token {
        /// Index of the datum in its request.
        datum: usize,
        /// Index of the token in the datum.
        position: usize,
        /// The token, as it was given.
        token: i64,
        /// Number of tokens in the vocabulary.
        vocab: usize,
    },

    /// A sequence holds no tokens.
    #[error("datum {datum} has no tokens")]
    EmptySequence {
        /// Index of the datum in its request.
        datum: usize,
    },

    /// A sequence does not fit the model's context.
    #[error("datum {datum} needs {got} tokens, but the model's context holds at most {limit}")]
    ContextOverflow {
        /// Index of the datum in its request.
        datum: usize,
        /// The tokens that it needs.
        got: usize,
        /// The tokens that fit.
        limit: usize,
    },

    /// A prompt and the tokens to be sampled do not fit the model's context.
    ///
    /// The wording is the API's own; clients look for it.
    #[error(
        "Prompt length plus max_tokens exceeds the model's context window: \
         {prompt} + {max_tokens} > {limit}"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that may be sampled.
        max_tokens: usize,
        /// The tokens that fit.
        limit: usize,
    },

    /// Too many requests wait already; the same request may succeed later.
    #[error("{limit} sampling requests are waiting already")]
    QueueFull {
        /// How many may wait.
        limit: usize,
    },

    /// Two inputs of a datum differ in length or shape.
    #[error("datum {datum}: `{input}` has shape {got:?}, expected {expected:?}")]
    InputShape {
        /// Index of the datum in its request.
        datum: usize,
        /// The input's key, such as `weights`.
        input: String,
        /// The shape that the datum's tokens call for.
        expected: Vec<usize>,
        /// The shape that was found.
        got: Vec<usize>,
    },

    /// A datum lacks an input, or holds one that the operation does not know.
    #[error("datum {datum}: input `{input}` {reason}")]
    Input {
        /// Index of the datum in its request.
        datum: usize,
        /// The input's key, such as `advantages`.
        input: String,
        /// What is wrong with it: `is missing`, `is not known to ppo`.
        reason: String,
    },

    /// An input or a result of a datum is infinite or not a number.
    #[error("datum {datum}, position {position}: {what} is {value}")]
    NonFiniteDatum {
        /// Index of the datum in its request.
        datum: usize,
        /// Index of the value in the datum.
        position: usize,
        /// The value's name, such as `advantages` or `logprob`.
        what: String,
        /// The value.
        value: f32,
    },

    /// A weight, gradient or update is infinite or not a number.
    #[error("{operation}: {tensor} holds {value} at element {index}")]
    NonFiniteTensor {
        /// The operation that found it, such as `optim_step`.
        operation: &'static str,
        /// The tensor's name, such as `gradient of lora_b of layers.3.q_proj`.
        tensor: String,
        /// Index of the first such element.
        index: usize,
        /// The value.
        value: f32,
    },
}

impl Error {
    /// Returns whether the caller's request is at fault, rather than the model's files or the disk.
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        match self {
            Self::InvalidInput(_)
            | Self::Token { .. }
            | Self::EmptySequence { .. }
            | Self::ContextOverflow { .. }
            | Self::PromptTooLong { .. }
            | Self::InputShape { .. }
            | Self::Input { .. }
            | Self::NonFiniteDatum { .. }
            | Self::InvalidOption { .. } => true,
            Self::QueueFull { .. }
            | Self::Io { .. }
            | Self::Json { .. }
            | Self::Malformed { .. }
            | Self::Unsupported { .. }
            | Self::MissingTensor { .. }
            | Self::Shape { .. }
            | Self::NonFiniteTensor { .. } => false,
        }
    }

    /// Names a setting that cannot be used, and why.
    pub(crate) fn invalid(option: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidOption {
            option: option.into(),
            reason: reason.into(),
        }
    }

    /// Names a file whose contents contradict its format, and how.
    pub(crate) fn malformed(document: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Malformed {
            document: document.into(),
            reason: reason.into(),
        }
    }

    /// Names an option that the engine does not implement, and what it does implement.
    pub(crate) fn unsupported(
        option: impl Into<String>,
        found: impl ToString,
        supported: &'static str,
    ) -> Self {
        Self::Unsupported {
            option: option.into(),
            found: found.to_string(),
            supported,
        }
    }

    /// Wraps a failed file operation; made for `map_err`.
    pub(crate) fn io(
        operation: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_error_names_the_tensor_and_both_shapes() {
        let error = Error::Shape {
            tensor: "lora_b of layers.3.q_proj".to_owned(),
            expected: vec![64, 8],
            got: vec![64, 16],
        };
        assert_eq!(
            error.to_string(),
            "lora_b of layers.3.q_proj: expected shape [64, 8], got [64, 16]"
        );
    }

    #[test]
    fn a_token_error_names_datum_and_position_and_blames_the_request() {
        let error = Error::Token {
            datum: 2,
            position: 7,
            token: -1,
            vocab: 100,
        };
        assert_eq!(
            error.to_string(),
            "datum 2, position 7: token -1 is outside the vocabulary of 100"
        );
        assert!(error.is_bad_request());
    }
}
