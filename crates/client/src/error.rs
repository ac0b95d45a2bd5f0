//! What can go wrong in a client call.

mod response;

pub use response::ErrorResponse;

use crate::auth::AuthError;
use crate::rest::download::DownloadError;
use crate::retry::{Caller, FailureKind, Reaction, is_user_error, reaction};
use std::time::Duration;
use tinkrs_types::service::ErrorCategory;
use tinkrs_types::{InvalidInput, RequestId};

/// The cause of an error, of whatever type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Anything that can go wrong in a client call.
///
/// Ask it questions rather than read its text: [`is_retryable`](Self::is_retryable),
/// [`is_user_error`](Self::is_user_error), [`status`](Self::status), [`body`](Self::body),
/// [`header`](Self::header),
/// [`category`](Self::category), [`request_id`](Self::request_id).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument was refused before anything was sent.
    #[error(transparent)]
    InvalidInput(#[from] InvalidInput),

    /// No usable credential was found, or none could be had.
    #[error("no usable credential")]
    Credential(#[from] AuthError),

    /// The base URL, a header or the TLS set-up cannot be used.
    #[error("the client cannot be set up: {message}")]
    Setup {
        /// What is wrong.
        message: String,
    },

    /// The server could not be reached, even after retrying.
    #[error("{operation}: could not reach {url} ({attempts} attempts)")]
    Unreachable {
        /// What was being done.
        operation: &'static str,
        /// Where the server should be.
        url: String,
        /// How often it was tried.
        attempts: u32,
        /// What the last try failed with.
        source: BoxError,
    },

    /// The server did not respond in time, even after retrying.
    #[error("{operation}: no response from {url} within {} s ({attempts} attempts)", timeout.as_secs_f64())]
    Timeout {
        /// What was being done.
        operation: &'static str,
        /// Where the server is.
        url: String,
        /// How long the last try waited.
        timeout: Duration,
        /// How often it was tried.
        attempts: u32,
    },

    /// The server refused the request, or kept failing at it.
    #[error("{operation}: status {status}: {message}")]
    Status {
        /// What was being done.
        operation: &'static str,
        /// The status of the last response.
        status: u16,
        /// The server's message.
        message: String,
        /// The response: see [`Error::body`] and [`Error::header`].
        response: Box<ErrorResponse>,
    },

    /// The server took the request, worked on it, and failed.
    #[error("{operation} failed: {message} ({category} error, request {request_id})")]
    RequestFailed {
        /// What was being done.
        operation: &'static str,
        /// Which request.
        request_id: RequestId,
        /// Whose fault it is.
        category: ErrorCategory,
        /// The server's message.
        message: String,
    },

    /// The server no longer knows the request.
    #[error("{operation}: the server no longer knows request {request_id}")]
    PromiseLost {
        /// What was being done.
        operation: &'static str,
        /// Which request.
        request_id: RequestId,
    },

    /// The server's response could not be parsed.
    #[error("{operation}: could not parse the server's response")]
    Answer {
        /// What was being done.
        operation: &'static str,
        /// What is wrong with it.
        source: BoxError,
    },

    /// No sample made progress for a long time.
    #[error("no sample made progress for {} s", after.as_secs())]
    Stuck {
        /// For how long.
        after: Duration,
    },

    /// The client was closed, or the runtime that it lived in.
    #[error("{operation}: the client is closed, or the runtime that it began on has ended")]
    Closed {
        /// What was being done.
        operation: &'static str,
    },

    /// The caller's own loss function failed.
    #[error("the custom loss failed")]
    CustomLoss(#[source] BoxError),

    /// The tokenizer could not be found or loaded.
    #[error("no tokenizer for `{model}`")]
    Tokenizer {
        /// For which model.
        model: String,
        /// Why.
        source: BoxError,
    },

    /// A text could not be turned into tokens, or back.
    #[cfg(feature = "tokenizers")]
    #[error(transparent)]
    Chat(#[from] tinkrs_chat::Error),

    /// A file could not be downloaded or written.
    #[error("the download failed")]
    Download(#[from] DownloadError),
}

impl Error {
    /// Returns whether the same call may succeed later, without any change to it.
    ///
    /// The client has retried it already for as long as it is worth.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::PromiseLost { .. }
            | Self::Stuck { .. } => true,
            Self::Status { status, .. } => {
                let failure = FailureKind::of_status(*status);
                reaction(Caller::Call, failure) != Reaction::Fail
            }
            Self::RequestFailed { category, .. } => *category == ErrorCategory::Server,
            Self::InvalidInput(_)
            | Self::Credential(_)
            | Self::Setup { .. }
            | Self::Answer { .. }
            | Self::Closed { .. }
            | Self::CustomLoss(_)
            | Self::Tokenizer { .. }
            | Self::Download(_) => false,
            #[cfg(feature = "tokenizers")]
            Self::Chat(_) => false,
        }
    }

    /// Returns whether the caller has to change something.
    pub fn is_user_error(&self) -> bool {
        match self {
            Self::InvalidInput(_)
            | Self::Credential(_)
            | Self::Setup { .. }
            | Self::CustomLoss(_) => true,
            Self::Status { status, .. } => is_user_error(*status),
            Self::RequestFailed { category, .. } => *category == ErrorCategory::User,
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::PromiseLost { .. }
            | Self::Answer { .. }
            | Self::Stuck { .. }
            | Self::Closed { .. }
            | Self::Tokenizer { .. }
            | Self::Download(_) => false,
            #[cfg(feature = "tokenizers")]
            Self::Chat(_) => false,
        }
    }

    /// Returns the status of the server's response, if it was an error status.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns the body of the server's response, if it was an error status.
    ///
    /// It is text of at most 64 KiB, without anything that looks like a credential.
    pub fn body(&self) -> Option<&str> {
        match self {
            Self::Status { response, .. } => Some(&response.body),
            _ => None,
        }
    }

    /// Returns a header of the server's response, if it was an error status.
    ///
    /// Values that look like a credential are taken out; cookies are not kept.
    pub fn header(&self, name: &str) -> Option<&str> {
        match self {
            Self::Status { response, .. } => response.header(name),
            _ => None,
        }
    }

    /// Returns whose fault a failed request is.
    pub fn category(&self) -> Option<ErrorCategory> {
        match self {
            Self::RequestFailed { category, .. } => Some(*category),
            _ => None,
        }
    }

    /// Returns the request that failed, to tell the service's support.
    pub fn request_id(&self) -> Option<&RequestId> {
        match self {
            Self::RequestFailed { request_id, .. } | Self::PromiseLost { request_id, .. } => {
                Some(request_id)
            }
            _ => None,
        }
    }

    /// Returns what this means for another try, if it is about an exchange with the server.
    pub(crate) fn failure_kind(&self) -> Option<FailureKind> {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => Some(FailureKind::Transport),
            Self::Status { status, .. } => Some(FailureKind::of_status(*status)),
            _ => None,
        }
    }

    pub(crate) fn answer(operation: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Answer {
            operation,
            source: source.into(),
        }
    }
}
