//! Reporting polls that fail, to the server that they go to.

use super::poll::{Patience, Wanted};
use crate::Error;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::connection::fault::Fault;
use crate::telemetry::named::{Exchange, PollFailed, PollKind, RequestFailed, ResultUnreadable};
use crate::telemetry::{error_type, redact};
use tokio::time::Instant;

/// Reports about one wait.
pub(super) struct Report<'a> {
    connection: &'a Connection,
    wanted: &'a Wanted<'a>,
    start: Instant,
}

impl<'a> Report<'a> {
    pub(super) fn new(connection: &'a Connection, wanted: &'a Wanted<'a>) -> Self {
        Self {
            connection,
            wanted,
            start: Instant::now(),
        }
    }

    /// Reports a poll that was answered with an error status, or not at all.
    pub(super) fn fault(
        &self,
        call: &Call,
        fault: &Fault,
        kind: PollKind,
        iteration: u64,
        patience: &Patience,
    ) {
        self.connection.report(|| PollFailed {
            request_id: self.wanted.request_id.as_str(),
            request_type: self.wanted.request_type.name(),
            status_code: fault.status(),
            detail: fault.describe(),
            kind,
            should_retry: kind != PollKind::Fatal,
            is_user_error: fault
                .status()
                .is_some_and(|status| (400..500).contains(&status)),
            exception: fault.describe(),
            exception_type: fault.kind().to_owned(),
            iteration,
            elapsed_time: self.start.elapsed().as_secs_f64(),
            bad_request_retries: patience.bad_requests,
            connection_error_retries: patience.backoffs,
            exchange: match (fault, kind) {
                (
                    Fault::Status { headers, body, .. },
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

    /// Reports an answer that says that the request failed, or that says nothing readable.
    pub(super) fn failed(&self, error: &Error, iteration: u64) {
        let (request_id, request_type) = (
            self.wanted.request_id.as_str(),
            self.wanted.request_type.name(),
        );
        let elapsed_time = self.start.elapsed().as_secs_f64();
        match error {
            Error::RequestFailed {
                category, message, ..
            } => {
                self.connection.report(|| RequestFailed {
                    request_id,
                    request_type,
                    error: message.clone(),
                    error_category: category.name(),
                    is_user_error: error.is_user_error(),
                    iteration,
                    elapsed_time,
                });
            }
            _ => self.connection.report(|| ResultUnreadable {
                is_protobuf: false,
                request_id,
                request_type,
                exception: error.to_string(),
                exception_type: error_type(error),
                response_bytes: 0,
                model_cls: request_type,
                iteration,
                elapsed_time,
            }),
        }
    }
}
