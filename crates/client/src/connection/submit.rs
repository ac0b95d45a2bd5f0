//! A call from its first try to its answer: retried as its policy says.

use super::Connection;
use super::call::{Answer, Call};
use super::fault::{Failed, Fault};
use super::older::Objection;
use super::retry::{self, Decision, Failure};
use crate::Error;
use crate::telemetry::named::CallFailed;
use http::Method;
use http::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::time::Duration;
use tinkrs_wire::header;
use tokio::time::Instant;
use tracing::Instrument;

impl Connection {
    /// Makes a call and reads its JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        self.call(&call).await?.json(call.operation)
    }

    /// Makes a call, retrying as its policy says.
    ///
    /// Once the client is closed, only the end of the session and the last reports go out.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer, Error> {
        self.submit(call).await.map_err(|failed| failed.error)
    }

    /// Makes a call like [`call`](Self::call), and says of a failure whether anything was sent.
    pub(crate) async fn submit(&self, call: &Call) -> Result<Answer, Failed> {
        if !matches!(call.operation, super::TELEMETRY | super::FINISH) {
            self.check_open(call.operation).map_err(Failed::unsent)?;
        }
        let span = tracing::debug_span!("call", operation = call.operation);
        self.call_in_span(call).instrument(span).await
    }

    async fn call_in_span(&self, call: &Call) -> Result<Answer, Failed> {
        let key = idempotency_key(call);
        let mut call = Cow::Borrowed(call);
        let start = Instant::now();
        let mut retries = 0;
        let mut blocked = Duration::ZERO;
        loop {
            let mut fault = match self.attempt(&call, key.as_ref(), retries).await {
                Ok(answer) => return Ok(self.taken(&call, answer)),
                Err(fault) => fault,
            };
            if let Some((objection, older)) = self.pass_form.older(&call, &fault) {
                match self.attempt_older(&older, key.as_ref(), retries).await {
                    Ok(answer) => return Ok(self.taken(&older, answer)),
                    Err(next) if objection == Objection::Refused => {
                        (call, fault) = (Cow::Owned(older), next);
                    }
                    // It was not the form: on with the one that servers of today take.
                    Err(_) => call.to_mut().is_pass = false,
                }
            }
            let call = &*call;
            let failure = match &fault {
                Fault::Local(_) => return Err(self.failed(call, fault, retries)),
                Fault::Status {
                    status, headers, ..
                } => Failure::Status(*status, headers),
                Fault::Connection(_) | Fault::Timeout => Failure::Transport,
            };
            let decision = retry::decide(
                call.policy,
                failure,
                retries,
                start.elapsed().saturating_sub(blocked),
                Timestamp::now(),
                fastrand::f64(),
            );
            if decision == Decision::WaitForBilling && self.billing_may_pause() {
                // A blocked try is not reported, and does not count against the call's patience.
                blocked += super::billing::PAUSE;
                tokio::time::sleep(super::billing::PAUSE).await;
                continue;
            }
            self.report_failure(call, &fault, retries, start);
            match decision {
                Decision::GiveUp | Decision::WaitForBilling => {
                    return Err(self.failed(call, fault, retries));
                }
                Decision::RetryAfter(delay) => {
                    let (kind, status) = (fault.kind(), fault.status());
                    tracing::debug!(kind, status, retries, ?delay, "retrying");
                    self.counters
                        .retries
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    retries += 1;
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Makes a try in the older form.
    ///
    /// Servers that break down over a body close the connection behind their answer, so that this try may
    /// meet the end of it. That says nothing about the form.
    async fn attempt_older(
        &self,
        call: &Call,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Answer, Fault> {
        for _ in 0..3 {
            match self.attempt(call, idempotency_key, retries).await {
                Err(Fault::Connection(_)) => {}
                outcome => return outcome,
            }
        }
        self.attempt(call, idempotency_key, retries).await
    }

    /// Takes note of the form in which a server took a pass.
    fn taken(&self, call: &Call, answer: Answer) -> Answer {
        if call.is_pass {
            self.pass_form.taken(call);
        }
        answer
    }

    fn report_failure(&self, call: &Call, fault: &Fault, retries: u32, start: Instant) {
        if call.operation == super::TELEMETRY {
            return;
        }
        self.report(|| {
            let status = match fault {
                Fault::Status { status, .. } => Some(*status),
                Fault::Connection(_) | Fault::Timeout | Fault::Local(_) => None,
            };
            let now = Timestamp::now().as_duration().as_secs_f64();
            let elapsed = start.elapsed().as_secs_f64();
            CallFailed {
                func: call.operation,
                exception: fault.describe(),
                exception_type: fault.kind().to_owned(),
                exception_stack: None,
                status_code: status.map(|status| status.as_u16()),
                is_retryable: status.is_none_or(|status| {
                    matches!(status.as_u16(), 408 | 409 | 429) || status.is_server_error()
                }),
                is_user_error: status
                    .is_some_and(|status| status.is_client_error() && status.as_u16() != 408),
                attempt_count: retries + 1,
                start_time: now - elapsed,
                current_time: now,
                elapsed_time: elapsed,
            }
        });
    }
}

/// The same for every try of a call, so that a server can tell a retry from a new call.
fn idempotency_key(call: &Call) -> Option<HeaderValue> {
    let own = |(name, _): &(HeaderName, _)| *name == header::IDEMPOTENCY_KEY;
    if call.method == Method::GET || call.headers.iter().any(own) {
        return None;
    }
    HeaderValue::try_from(format!("tinkrs-retry-{}", crate::uuid::v4())).ok()
}
