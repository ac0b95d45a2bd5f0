//! How calls fail: one try of a call, and a call as a whole.

use super::Connection;
use super::call::Call;
use super::transport::MAX_REDIRECTS;
use crate::Error;
use crate::error::{BoxError, ErrorResponse};
use crate::retry::FailureKind;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tinkrs_types::protocol::QueueStatus;
use tinkrs_wire::ErrorBody;
use tinkrs_wire::op::retrieve_future::queue_status;

/// Why one try of a call gave no usable response.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// The connection broke, or could not be made.
    Connection(BoxError),
    /// The server was silent for too long.
    Timeout,
    /// The response is longer than any that fits the call.
    TooLong { limit_bytes: usize },
    /// The server redirects again and again.
    TooManyRedirects,
    /// The server answered with an error status.
    Status {
        status: StatusCode,
        headers: Box<HeaderMap>,
        body: Bytes,
    },
    /// Nothing was sent: there is no credential, or the request cannot be formed.
    Unsent(Error),
}

impl AttemptError {
    /// Returns what went wrong, without anything that was sent.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Connection(error) => error.to_string(),
            Self::Timeout => "no response in time".to_owned(),
            Self::TooLong { limit_bytes } => too_long(*limit_bytes),
            Self::TooManyRedirects => too_many_redirects(),
            Self::Status { body, .. } => ErrorBody::message(body),
            Self::Unsent(error) => error.to_string(),
        }
    }

    /// Returns the status of the response, if there was one.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(status.as_u16()),
            Self::Connection(_)
            | Self::Timeout
            | Self::TooLong { .. }
            | Self::TooManyRedirects
            | Self::Unsent(_) => None,
        }
    }

    /// Returns the headers of the response, if there was one.
    pub(crate) fn headers(&self) -> Option<&HeaderMap> {
        match self {
            Self::Status { headers, .. } => Some(headers),
            Self::Connection(_)
            | Self::Timeout
            | Self::TooLong { .. }
            | Self::TooManyRedirects
            | Self::Unsent(_) => None,
        }
    }

    /// Returns the queue state that the response reports, if it does.
    pub(crate) fn queue_status(&self) -> Option<QueueStatus> {
        match self {
            Self::Status { body, .. } => queue_status(body),
            Self::Connection(_)
            | Self::Timeout
            | Self::TooLong { .. }
            | Self::TooManyRedirects
            | Self::Unsent(_) => None,
        }
    }

    /// Returns what this means for another try; `None` if another would fail like this one.
    pub(crate) fn failure_kind(&self) -> Option<FailureKind> {
        match self {
            Self::Connection(_) | Self::Timeout => Some(FailureKind::Transport),
            Self::Status { status, .. } => Some(FailureKind::of_status(status.as_u16())),
            Self::TooLong { .. } | Self::TooManyRedirects | Self::Unsent(_) => None,
        }
    }

    /// Returns the name of this kind of error, for reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Connection(_) => "Connection",
            Self::Timeout => "Timeout",
            Self::Status { .. } => "Status",
            Self::TooLong { .. } | Self::TooManyRedirects | Self::Unsent(_) => "Local",
        }
    }
}

fn too_long(limit_bytes: usize) -> String {
    format!("it is longer than {limit_bytes} bytes, the most that fits this call")
}

fn too_many_redirects() -> String {
    format!("the server redirects more than {MAX_REDIRECTS} times")
}

/// Why a call failed, and whether the server may know of it.
#[derive(Debug)]
pub(crate) struct SubmitError {
    pub(crate) error: Error,
    /// Whether the server may have seen the request.
    pub(crate) sent: bool,
    /// Whether the call ended because of its own [`stop_if`](Call::stop_if).
    pub(crate) stopped: bool,
}

impl SubmitError {
    /// Makes the error of a call that was not made.
    pub(crate) fn unsent(error: impl Into<Error>) -> Self {
        Self {
            error: error.into(),
            sent: false,
            stopped: false,
        }
    }

    /// Makes the error of a call whose response is of no use.
    pub(crate) fn sent(error: Error) -> Self {
        Self {
            error,
            sent: true,
            stopped: false,
        }
    }
}

impl Connection {
    /// Makes the error of a call whose last try failed like this.
    pub(crate) fn error(&self, call: &Call, attempt: AttemptError, retries: u32) -> Error {
        let operation = call.operation;
        let (url, attempts) = (self.address.base_url.clone(), retries + 1);
        match attempt {
            AttemptError::Connection(source) => Error::Unreachable {
                operation,
                url,
                attempts,
                source,
            },
            AttemptError::Timeout => Error::Timeout {
                operation,
                url,
                timeout: self.silence(call),
                attempts,
            },
            AttemptError::TooLong { limit_bytes } => {
                Error::answer(operation, too_long(limit_bytes))
            }
            AttemptError::TooManyRedirects => Error::answer(operation, too_many_redirects()),
            AttemptError::Status {
                status,
                headers,
                body,
            } => {
                let message = match ErrorBody::message(&body) {
                    message if message.is_empty() => "the server gave no reason".to_owned(),
                    message => message,
                };
                Error::Status {
                    operation,
                    status: status.as_u16(),
                    message,
                    response: Box::new(ErrorResponse::new(&headers, &body)),
                }
            }
            AttemptError::Unsent(error) => error,
        }
    }
}
