//! What the client reports about itself, to the server it talks to and to no other.
//!
//! Reports tell the service's operators what fails and how often. They are off with
//! `TINKER_TELEMETRY=0`. A caller never waits for one: events go into a bounded queue, and a task
//! sends them in batches, every ten seconds or when something failed. Only
//! [`close`](Telemetry::close) waits, for a while, until the queue is empty.
//!
//! Invariants: no credential leaves in an event, whatever it was made from ([`redact`]); and a
//! server that refuses reports gets no more of them.

pub(crate) mod named;
pub(crate) mod redact;
mod sender;

use crate::{Error, uuid};
use named::Named;
use sender::Sender;
use serde_json::{Map, Value, json};
use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tinkrs_types::protocol::{Severity, TelemetryBatch, TelemetryEvent, TelemetryEventKind};
use tinkrs_types::{SessionId, Timestamp};
use tinkrs_wire::SDK_VERSION;

/// Takes note of events and sends them now and then.
///
/// Clones share one queue. When the last one is dropped, what is queued is sent if that works at
/// the first try.
#[derive(Clone)]
pub(crate) struct Telemetry {
    sender: Arc<Sender>,
}

impl Telemetry {
    /// Starts to report on a session, or on a client without one.
    ///
    /// `send` delivers a batch. It should have a deadline of its own (5 s), and must not hold a
    /// clone of what it returns, which would keep the reports going for ever. This spawns a
    /// task, so it needs a runtime.
    pub(crate) fn start<S, F>(session: Option<&SessionId>, send: S) -> Self
    where
        S: Fn(TelemetryBatch) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let session_id = match session {
            Some(id) => id.to_string(),
            None => format!("sessionless-{}", uuid::v4()),
        };
        let send = move |events| {
            send(TelemetryBatch {
                events,
                platform: platform().to_owned(),
                sdk_version: SDK_VERSION.to_owned(),
                session_id: session_id.clone(),
                process_uuid: process_uuid(),
            })
        };
        let telemetry = Self {
            sender: Arc::new(Sender::start(send)),
        };
        if session.is_some() {
            telemetry.push(Severity::Info, TelemetryEventKind::SessionStart);
        }
        telemetry
    }

    /// Takes note of an event.
    pub(crate) fn event(&self, name: &str, severity: Severity, data: Map<String, Value>) {
        let event_data = data.into_iter();
        let kind = TelemetryEventKind::GenericEvent {
            event_name: name.to_owned(),
            event_data: event_data
                .map(|(key, value)| (key, redact::value(value)))
                .collect(),
        };
        self.push(severity, kind);
    }

    /// Takes note of an event that the service has a name for.
    pub(crate) fn named(&self, event: &impl Named) {
        if let Ok(Value::Object(data)) = serde_json::to_value(event) {
            self.event(event.name(), event.severity(), data);
        }
    }

    /// Takes note of an error that reached the user, and sends it soon.
    pub(crate) fn error(&self, error: &Error) {
        let error_type = error_type(error);
        let message = redact::text(&with_causes(error));
        if error.is_user_error() {
            let body = match error {
                Error::Status { message, .. } => Some(message),
                _ => None,
            };
            let data = json!({
                "error_type": error_type,
                "message": message,
                "status_code": error.status(),
                "body": body,
            });
            if let Value::Object(data) = data {
                self.event("user_error", Severity::Warning, data);
            }
        } else {
            let kind = TelemetryEventKind::UnhandledException {
                error_type,
                error_message: message,
                traceback: None,
            };
            self.push(Severity::Error, kind);
        }
        self.flush();
    }

    /// Takes note that an error ended the session, and sends it soon.
    pub(crate) fn ended(&self) {
        let duration = elapsed_text(self.sender.age());
        self.push(Severity::Info, TelemetryEventKind::SessionEnd { duration });
        self.flush();
    }

    /// Sends what is queued soon, without waiting for it.
    pub(crate) fn flush(&self) {
        self.sender.flush();
    }

    /// Sends what is queued and waits for it, for half a minute at most. Later events are dropped.
    pub(crate) async fn close(&self) {
        self.sender.close().await;
    }

    fn push(&self, severity: Severity, kind: TelemetryEventKind) {
        self.sender.push(|index| TelemetryEvent {
            kind,
            event_id: uuid::v4(),
            event_session_index: index,
            severity,
            timestamp: Timestamp::now(),
        });
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// Returns the name of the error's variant, with which its `Debug` form begins.
pub(crate) fn error_type(error: &Error) -> String {
    let shown = format!("{error:?}");
    let name = shown.split(|c: char| !c.is_alphanumeric()).next();
    name.unwrap_or_default().to_owned()
}

fn with_causes(error: &Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    message
}

/// Returns the operating system's name as it calls itself.
fn platform() -> &'static str {
    match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        "windows" => "Windows",
        other => other,
    }
}

/// Returns the id of this process: the same for all clients in it, another one after a fork.
fn process_uuid() -> String {
    static CURRENT: Mutex<(u32, String)> = Mutex::new((0, String::new()));
    let mut current = crate::lock::lock(&CURRENT);
    if current.0 != std::process::id() || current.1.is_empty() {
        *current = (std::process::id(), uuid::v4());
    }
    current.1.clone()
}

/// Writes an elapsed time as Python does, which is what readers of reports expect: `0:01:02.345678`.
fn elapsed_text(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let days = match days {
        0 => String::new(),
        1 => "1 day, ".to_owned(),
        days => format!("{days} days, "),
    };
    let clock = format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    match elapsed.subsec_micros() {
        0 => format!("{days}{clock}"),
        micros => format!("{days}{clock}.{micros:06}"),
    }
}

#[cfg(test)]
mod tests;
