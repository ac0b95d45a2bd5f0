//! Events that the service knows by name, with the members it knows them to have.
//!
//! The names come from the official client, whose methods they are named after.

use serde::Serialize;
use serde_json::{Map, Value};
use tinkrs_types::protocol::Severity;

/// An event with a name that the service knows.
pub(crate) trait Named: Serialize {
    /// Returns the name.
    fn name(&self) -> &'static str;
    /// Returns how serious the event is.
    fn severity(&self) -> Severity;
}

/// Failures that go away, and those that the user has to see to, are not the service's errors.
fn severity(passing: bool, is_user_error: bool) -> Severity {
    if passing || is_user_error {
        Severity::Warning
    } else {
        Severity::Error
    }
}

/// An attempt at a call failed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CallFailed<'a> {
    pub(crate) func: &'a str,
    pub(crate) exception: String,
    pub(crate) exception_type: String,
    pub(crate) exception_stack: Option<String>,
    pub(crate) status_code: Option<u16>,
    pub(crate) is_retryable: bool,
    pub(crate) is_user_error: bool,
    /// How many came before it: here the official client counts from 0, and samples from 1.
    pub(crate) attempt_count: u32,
    /// In Unix seconds, like the next.
    pub(crate) start_time: f64,
    pub(crate) current_time: f64,
    /// In seconds.
    pub(crate) elapsed_time: f64,
}

impl Named for CallFailed<'_> {
    fn name(&self) -> &'static str {
        "InternalClientHolder.execute_with_retries.exception"
    }

    fn severity(&self) -> Severity {
        severity(self.is_retryable, self.is_user_error)
    }
}

/// An attempt at a whole sample failed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SampleFailed<'a> {
    pub(crate) func: &'a str,
    pub(crate) exception: String,
    pub(crate) exception_type: String,
    pub(crate) exception_stack: Option<String>,
    pub(crate) status_code: Option<u16>,
    pub(crate) should_retry: bool,
    pub(crate) is_user_error: bool,
    pub(crate) attempt_count: u32,
    /// In Unix seconds, like the next.
    pub(crate) start_time: f64,
    pub(crate) current_time: f64,
    /// In seconds.
    pub(crate) elapsed_time: f64,
}

impl Named for SampleFailed<'_> {
    fn name(&self) -> &'static str {
        "RetryHandler.execute.exception"
    }

    fn severity(&self) -> Severity {
        severity(self.should_retry, self.is_user_error)
    }
}

/// What is done about a failed poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PollKind {
    /// Polled again.
    Retry,
    /// Polled again, later and later.
    RetryWithBackoff,
    /// Polled again a few times.
    RetryIfBudget,
    /// Left to the layer that can repeat the whole request.
    RetryableException,
    /// Given up.
    Fatal,
}

/// A poll for a result was answered with an error status, or not at all.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PollFailed<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) request_type: &'a str,
    /// 0 if there was no response.
    pub(crate) status_code: u16,
    pub(crate) detail: String,
    pub(crate) kind: PollKind,
    pub(crate) should_retry: bool,
    pub(crate) is_user_error: bool,
    pub(crate) exception: String,
    pub(crate) exception_type: String,
    pub(crate) iteration: u64,
    pub(crate) elapsed_time: f64,
    pub(crate) bad_request_retries: u32,
    pub(crate) connection_error_retries: u32,
    /// For 400s, and for what is given up.
    #[serde(flatten)]
    pub(crate) exchange: Option<Exchange>,
}

/// What was sent and what came back. Make the headers with [`redact::headers`].
///
/// [`redact::headers`]: super::redact::headers
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Exchange {
    pub(crate) request_headers: Map<String, Value>,
    pub(crate) response_headers: Map<String, Value>,
    pub(crate) response_body: String,
}

impl Named for PollFailed<'_> {
    fn name(&self) -> &'static str {
        match self.status_code {
            0 => "APIFuture.result_async.connection_error",
            _ => "APIFuture.result_async.api_status_error",
        }
    }

    /// A 400 is an error even if it is polled again: the service watches for those that proxies make up.
    fn severity(&self) -> Severity {
        match self.kind {
            PollKind::Fatal | PollKind::RetryIfBudget => Severity::Error,
            PollKind::Retry | PollKind::RetryWithBackoff | PollKind::RetryableException => {
                Severity::Warning
            }
        }
    }
}

/// The server worked on a request and failed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RequestFailed<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) request_type: &'a str,
    pub(crate) error: String,
    pub(crate) error_category: &'a str,
    pub(crate) is_user_error: bool,
    pub(crate) iteration: u64,
    pub(crate) elapsed_time: f64,
}

impl Named for RequestFailed<'_> {
    fn name(&self) -> &'static str {
        "APIFuture.result_async.application_error"
    }

    fn severity(&self) -> Severity {
        severity(false, self.is_user_error)
    }
}

/// A result could not be read.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResultUnreadable<'a> {
    pub(crate) request_id: &'a str,
    pub(crate) request_type: &'a str,
    pub(crate) exception: String,
    pub(crate) exception_type: String,
    #[serde(flatten)]
    pub(crate) content: Content,
    pub(crate) model_cls: &'a str,
    pub(crate) iteration: u64,
    pub(crate) elapsed_time: f64,
}

/// What an unreadable result was to be read as.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Content {
    Proto { proto_bytes_len: usize },
    Json { exception_stack: Option<String> },
}

impl Named for ResultUnreadable<'_> {
    fn name(&self) -> &'static str {
        match self.content {
            Content::Proto { .. } => "APIFuture.result_async.proto_deserialization_error",
            Content::Json { .. } => "APIFuture.result_async.validation_error",
        }
    }

    fn severity(&self) -> Severity {
        Severity::Error
    }
}
