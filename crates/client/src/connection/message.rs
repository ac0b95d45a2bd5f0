//! Telling the user what the service says besides the responses to calls.

use super::Connection;
use http::HeaderMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tinkrs_types::protocol::Severity;
use tinkrs_wire::header;
use tokio::time::Instant;

/// What a user wants called with the service's messages.
pub(crate) type MessageListener = Arc<dyn Fn(&ServiceMessage) + Send + Sync>;

/// How long calls are refused as too many before the user is told: a moment of it is nothing unusual.
const RATE_LIMITED_AFTER: Duration = Duration::from_secs(5);

/// What the service says besides the responses to calls. Shown, it is a line for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ServiceMessage {
    /// What the server says to a new session.
    Session {
        /// How serious it is.
        severity: Severity,
        /// Its words.
        text: String,
    },
    /// Something that this client does is deprecated.
    Deprecated {
        /// What was done.
        operation: &'static str,
        /// How serious it is.
        severity: Severity,
        /// The server's words.
        note: String,
    },
    /// Billing is blocked, and calls wait until that is over.
    BillingBlocked {
        /// The server's words.
        reason: String,
        /// How long they wait at most, in all.
        max_wait: Duration,
    },
    /// Calls have been refused as too many for a while, and wait.
    RateLimited {
        /// What waits.
        operation: &'static str,
        /// The server's words.
        reason: String,
    },
    /// The server has not got a heartbeat for a while: it may end the session.
    NoHeartbeat {
        /// For how long.
        silent: Duration,
        /// Why the last one failed.
        cause: String,
    },
    /// The server says that the session is over.
    SessionEnded,
}

impl fmt::Display for ServiceMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session { severity, text } => write!(f, "{}{text}", prefix(*severity)),
            Self::Deprecated {
                operation,
                severity,
                note,
            } => write!(f, "{}{operation} is deprecated: {note}", prefix(*severity)),
            Self::BillingBlocked { reason, max_wait } => {
                let minutes = max_wait.as_secs().div_ceil(60);
                write!(
                    f,
                    "billing is blocked: {reason}; waiting up to {minutes} min for it to clear"
                )
            }
            Self::RateLimited { operation, reason } => {
                write!(f, "too many requests, {operation} waits: {reason}")
            }
            Self::NoHeartbeat { silent, cause } => write!(
                f,
                "the server has had no heartbeat for {} s and may end the session: {cause}",
                silent.as_secs()
            ),
            Self::SessionEnded => f.write_str("the server has ended the session"),
        }
    }
}

fn prefix(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical | Severity::Error => "error: ",
        Severity::Warning => "warning: ",
        Severity::Info | Severity::Debug => "",
    }
}

impl Connection {
    /// Passes a message on to the user's listener, if there is one.
    pub(crate) fn tell(&self, message: impl FnOnce() -> ServiceMessage) {
        let Some(listener) = &self.message_listener else {
            return;
        };
        let message = message();
        // A listener that panics must not cost the call that has brought the message.
        let call = std::panic::AssertUnwindSafe(|| listener(&message));
        if std::panic::catch_unwind(call).is_err() {
            tracing::error!("the listener for messages of the service panicked");
        }
    }

    /// Takes note of a 402 and returns whether to wait and try again.
    pub(crate) fn billing_may_pause(&self, reason: impl fmt::Display) -> bool {
        let may_pause = self.server.billing_may_pause();
        if may_pause {
            self.tell(|| ServiceMessage::BillingBlocked {
                reason: reason.to_string(),
                max_wait: self.server.max_billing_pause(),
            });
        }
        may_pause
    }

    /// Takes note that something has been refused as too many requests since then, and waits again.
    pub(crate) fn rate_limited(
        &self,
        operation: &'static str,
        since: Instant,
        wait: Duration,
        reason: impl fmt::Display,
    ) {
        if since.elapsed() + wait >= RATE_LIMITED_AFTER {
            self.tell(|| ServiceMessage::RateLimited {
                operation,
                reason: reason.to_string(),
            });
        }
    }

    /// Looks for a note of deprecation in a response.
    pub(super) fn note_deprecation(&self, operation: &'static str, headers: &HeaderMap) {
        let Some(note) = headers
            .get(header::DEPRECATION_NOTE)
            .and_then(|note| note.to_str().ok())
            .filter(|note| !note.is_empty())
        else {
            return;
        };
        let level = headers.get(header::DEPRECATION_LEVEL);
        let severity = if level.is_some_and(|level| level == "error") {
            tracing::error!(operation, note, "deprecated");
            Severity::Error
        } else {
            tracing::warn!(operation, note, "deprecated");
            Severity::Warning
        };
        self.tell(|| ServiceMessage::Deprecated {
            operation,
            severity,
            note: note.to_owned(),
        });
    }
}
