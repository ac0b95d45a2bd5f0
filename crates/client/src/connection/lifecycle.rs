//! Whether a connection was ever made, whether it is still in use, and the reports about it.

use crate::Error;
use crate::telemetry::Telemetry;
use crate::telemetry::named::Named;
use serde_json::{Map, Value};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tinkrs_types::SessionId;
use tinkrs_types::protocol::{Severity, TelemetryBatch};
use tinkrs_types::session::FinishReason;
use tokio::sync::watch;

/// Open, closed to new work, or at its end; and the reports meanwhile.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// Whether the server has answered, whatever it said.
    answered: AtomicBool,
    closed: AtomicBool,
    /// True once no result is worth waiting for any more.
    ended: watch::Sender<bool>,
    telemetry: OnceLock<Telemetry>,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self {
            answered: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            telemetry: OnceLock::new(),
        }
    }

    /// Takes note of a response.
    pub(super) fn answered(&self) {
        // Written once: all calls of all threads read it.
        if !self.has_answered() {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Refuses new work from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn check_open(&self, operation: &'static str) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed { operation });
        }
        Ok(())
    }

    /// Gives up waiting for results that have not arrived yet.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Returns once [`end`](Self::end) was called.
    pub(crate) async fn ended(&self) {
        // It cannot fail: `self` owns the sender.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Starts to send reports.
    pub(super) fn start_telemetry<F>(
        &self,
        session: Option<&SessionId>,
        send: impl Fn(TelemetryBatch) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        // A second start would only be a second task with the same reports.
        let _ = self.telemetry.set(Telemetry::start(session, send));
    }

    /// Reports an event, which is only described if telemetry is on.
    pub(crate) fn report<E: Named>(&self, event: impl FnOnce() -> E) {
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.named(&event());
        }
    }

    /// Reports an event of the user's own; returns whether anything is reported.
    pub(crate) fn report_own(
        &self,
        name: &str,
        severity: Severity,
        data: Map<String, Value>,
    ) -> bool {
        let telemetry = self.telemetry.get();
        telemetry.is_some_and(|telemetry| {
            telemetry.event(name, severity, data);
            true
        })
    }

    /// Reports an error that reaches the user.
    pub(crate) fn report_error(&self, error: &Error) {
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.error(error);
        }
    }

    /// Runs an operation and reports its error, which reaches the user.
    pub(crate) async fn reporting<T>(
        &self,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let result = operation.await;
        result.inspect_err(|error| self.report_error(error))
    }

    /// Sends what there is to report, and reports no more.
    pub(crate) async fn close_telemetry(&self, reason: FinishReason) {
        if let Some(telemetry) = self.telemetry.get() {
            if reason == FinishReason::Errored {
                telemetry.ended();
            }
            telemetry.close().await;
        }
    }
}
