//! Telling the user that a call failed and is tried again.

use super::Connection;
use super::call::Call;
use super::errors::AttemptError;
use crate::retry::FailureKind;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a user wants called when a call is tried again.
pub(crate) type RetryListener = Arc<dyn Fn(&RetryNotice) + Send + Sync>;

/// A call that failed and is tried again. Shown, it is a line for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RetryNotice {
    /// What was being done.
    pub operation: &'static str,
    /// Where the server should be.
    pub url: String,
    /// What went wrong: `could not reach http://127.0.0.1:8000: Connection refused (os error 111)`.
    pub cause: String,
    /// How long it is still retried, if that is bounded by a time.
    pub remaining: Option<Duration>,
}

impl fmt::Display for RetryNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remaining {
            Some(remaining) => {
                let seconds = remaining.as_secs_f64().ceil();
                write!(f, "{}; retrying for {seconds} s", self.cause)
            }
            None => write!(f, "{}; retrying", self.cause),
        }
    }
}

impl Connection {
    /// Tells the user of a failure at the first try, unless it is one that everybody meets now and then.
    pub(crate) fn notify_retry(
        &self,
        call: &Call,
        failure: FailureKind,
        failed: &AttemptError,
        remaining: Option<Duration>,
    ) {
        let Some(listener) = &self.retry_listener else {
            return;
        };
        let url = &self.address.base_url;
        let cause = match (failure, failed) {
            (FailureKind::Transport, AttemptError::Connection(error)) => {
                format!("could not reach {url}: {}", innermost(&**error))
            }
            (FailureKind::Transport, _) => {
                let seconds = self.silence(call).as_secs_f64();
                format!("no response from {url} within {seconds} s")
            }
            (FailureKind::ServerError, _) => {
                let status = failed.status().unwrap_or_default();
                format!("{url} failed with status {status}: {}", failed.describe())
            }
            _ => return,
        };
        listener(&RetryNotice {
            operation: call.operation,
            url: url.clone(),
            cause,
            remaining,
        });
    }
}

/// Returns the cause of causes: what the layers above it say is that a connection failed.
fn innermost<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_a_line_for_people() {
        let mut notice = RetryNotice {
            operation: "client_config",
            url: "http://a".to_owned(),
            cause: "could not reach http://a: refused".to_owned(),
            remaining: Some(Duration::from_millis(19_998)),
        };
        let line = "could not reach http://a: refused; retrying for 20 s";
        assert_eq!(notice.to_string(), line);
        notice.remaining = None;
        let line = "could not reach http://a: refused; retrying";
        assert_eq!(notice.to_string(), line);
    }
}
