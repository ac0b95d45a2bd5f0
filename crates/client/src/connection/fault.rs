//! How calls go wrong, and what that means to the caller.

use super::Connection;
use super::call::Call;
use super::transport::{Broken, MAX_ANSWER_BYTES};
use crate::Error;
use crate::error::BoxError;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tinkrs_types::protocol::QueueStatus;
use tinkrs_wire::ErrorBody;
use tinkrs_wire::op::retrieve_future::queue_status;

/// How one try went wrong.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection broke.
    Connection(BoxError),
    /// The answer took too long.
    Timeout,
    /// The server answered with an error status.
    Status {
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    },
    /// Trying again is of no use: there is no credential to send, the request cannot be formed,
    /// or its answer is too large.
    Local(Error),
}

impl Fault {
    /// Makes the fault of a call whose exchange broke.
    pub(super) fn of(call: &Call, broken: Broken) -> Self {
        match broken {
            Broken::Connection(error) => Self::Connection(error),
            Broken::Timeout => Self::Timeout,
            Broken::TooLong => {
                let message = format!("more than {MAX_ANSWER_BYTES} bytes");
                Self::Local(Error::answer(call.operation, message))
            }
        }
    }

    /// Returns what went wrong, without anything that was sent.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Connection(error) => error.to_string(),
            Self::Timeout => "no answer in time".to_owned(),
            Self::Status { body, .. } => ErrorBody::message(body),
            Self::Local(error) => error.to_string(),
        }
    }

    /// Returns the status of the server's answer, if there was one.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(status.as_u16()),
            Self::Connection(_) | Self::Timeout | Self::Local(_) => None,
        }
    }

    /// Returns the queue state that the server's answer tells, if it does.
    pub(crate) fn queue_status(&self) -> Option<QueueStatus> {
        match self {
            Self::Status { body, .. } => queue_status(body),
            Self::Connection(_) | Self::Timeout | Self::Local(_) => None,
        }
    }

    /// Returns the name of this kind of fault.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Connection(_) => "Connection",
            Self::Timeout => "Timeout",
            Self::Status { .. } => "Status",
            Self::Local(_) => "Local",
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Whether the server may have seen the request.
    pub(crate) sent: bool,
}

impl Failed {
    /// Makes the failure of a call that was not made.
    pub(crate) fn unsent(error: impl Into<Error>) -> Self {
        Self {
            error: error.into(),
            sent: false,
        }
    }
}

impl Connection {
    pub(super) fn failed(&self, call: &Call, fault: Fault, retries: u32) -> Failed {
        Failed {
            sent: retries > 0 || !matches!(fault, Fault::Local(_)),
            error: self.error(call, fault, retries),
        }
    }

    /// Says what a fault means to the caller once nothing more is tried.
    pub(crate) fn error(&self, call: &Call, fault: Fault, retries: u32) -> Error {
        let operation = call.operation;
        let (url, attempts) = (self.base_url.clone(), retries + 1);
        match fault {
            Fault::Connection(source) => Error::Unreachable {
                operation,
                url,
                attempts,
                source,
            },
            Fault::Timeout => Error::Timeout {
                operation,
                url,
                timeout: self.timeout(call),
                attempts,
            },
            Fault::Status { status, body, .. } => {
                let message = match ErrorBody::message(&body) {
                    message if message.is_empty() => "the server gave no reason".to_owned(),
                    message => message,
                };
                Error::Status {
                    operation,
                    status,
                    message,
                }
            }
            Fault::Local(error) => error,
        }
    }
}
