//! Reporting polls that fail, to the server that they go to.

use super::poll::{PollState, PollTarget};
use crate::Error;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::connection::errors::AttemptError;
use crate::retry::is_user_error;
use crate::telemetry::named::{
    Content, Exchange, PollFailed, PollKind, RequestFailed, ResultUnreadable,
};
use crate::telemetry::{error_type, redact};
use std::time::Duration;
use tinkrs_types::RequestId;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::service::ErrorCategory;
use tokio::time::Instant;

/// Reports about one wait.
pub(super) struct Report<'a> {
    connection: &'a Connection,
    target: &'a PollTarget<'a>,
    start: Instant,
}

impl<'a> Report<'a> {
    pub(super) fn new(connection: &'a Connection, target: &'a PollTarget<'a>) -> Self {
        Self {
            connection,
            target,
            start: Instant::now(),
        }
    }

    /// Returns how long the wait has taken.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Reports a poll whose response has an error status, or that got none.
    pub(super) fn failed_poll(
        &self,
        call: &Call,
        failed: &AttemptError,
        kind: PollKind,
        iteration: u64,
        state: &PollState,
    ) {
        self.connection.lifecycle.report(|| PollFailed {
            request_id: self.target.request_id.as_str(),
            request_type: self.target.request_type.name(),
            status_code: failed.status().unwrap_or(0),
            detail: failed.describe(),
            kind,
            should_retry: kind != PollKind::Fatal,
            is_user_error: failed.status().is_some_and(is_user_error),
            exception: failed.describe(),
            exception_type: failed.name().to_owned(),
            iteration,
            elapsed_time: self.start.elapsed().as_secs_f64(),
            bad_request_retries: state.bad_requests,
            connection_error_retries: state.backoffs,
            exchange: match (failed, kind) {
                (
                    AttemptError::Status { headers, body, .. },
                    PollKind::Fatal | PollKind::RetryIfBudget,
                ) => Some(Exchange {
                    request_headers: redact::headers(&call.headers.iter().cloned().collect()),
                    response_headers: redact::headers(headers),
                    response_body: String::from_utf8_lossy(body).into_owned(),
                }),
                _ => None,
            },
        });
    }

    /// Reports a response that says that the request failed, or that cannot be parsed.
    pub(super) fn failed(&self, error: &Error, iteration: u64) {
        let (request_id, request_type) = (
            self.target.request_id.as_str(),
            self.target.request_type.name(),
        );
        let elapsed_time = self.start.elapsed().as_secs_f64();
        match error {
            Error::RequestFailed {
                category, message, ..
            } => {
                self.connection.lifecycle.report(|| RequestFailed {
                    request_id,
                    request_type,
                    error: message.clone(),
                    error_category: match category {
                        ErrorCategory::User => "User",
                        ErrorCategory::Server => "Server",
                        _ => "Unknown",
                    },
                    is_user_error: error.is_user_error(),
                    iteration,
                    elapsed_time,
                });
            }
            _ => self.connection.lifecycle.report(|| ResultUnreadable {
                request_id,
                request_type,
                exception: error.to_string(),
                exception_type: error_type(error),
                content: Content::Json {
                    exception_stack: None,
                },
                model_cls: request_type,
                iteration,
                elapsed_time,
            }),
        }
    }
}

/// How a result was fetched, for a report if it cannot be parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    /// How many polls came before the one that brought it.
    pub(super) iteration: u64,
    pub(super) elapsed: Duration,
    /// Its length, if it is protobuf.
    pub(super) proto_bytes_len: Option<usize>,
}

/// Reports a result that cannot be parsed.
pub(crate) fn unreadable(
    connection: &Connection,
    request_id: &RequestId,
    request_type: RequestType,
    fetched: Fetched,
    error: &Error,
) {
    connection.lifecycle.report(|| ResultUnreadable {
        request_id: request_id.as_str(),
        request_type: request_type.name(),
        exception: error.to_string(),
        exception_type: error_type(error),
        content: match fetched.proto_bytes_len {
            Some(proto_bytes_len) => Content::Proto { proto_bytes_len },
            None => Content::Json {
                exception_stack: None,
            },
        },
        model_cls: request_type.name(),
        iteration: fetched.iteration,
        elapsed_time: fetched.elapsed.as_secs_f64(),
    });
}
