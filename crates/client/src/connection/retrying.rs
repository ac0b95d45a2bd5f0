//! A call from its first try to its response: retried as its policy says.

use super::Connection;
use super::billing;
use super::call::{Call, Response};
use super::errors::{AttemptError, SubmitError};
use super::policy::{self, Decision, FIRST_CONTACT, Policy};
use crate::Error;
use crate::retry::{Caller, FailureKind, Reaction, is_user_error, reaction};
use crate::telemetry::named::CallFailed;
use http::Method;
use http::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tinkrs_wire::header;
use tokio::time::Instant;
use tracing::Instrument;

impl Connection {
    /// Makes a call and reads its JSON response.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        self.call(&call).await?.json(call.operation)
    }

    /// Makes a call, retrying as its policy says.
    ///
    /// Once the client is closed, only the end of the session and the last reports go out.
    pub(crate) async fn call(&self, call: &Call) -> Result<Response, Error> {
        let response = self.call_noting_sent(call).await;
        response.map_err(|failed| failed.error)
    }

    /// Makes a call like [`call`](Self::call); the error tells whether anything was sent.
    pub(crate) async fn call_noting_sent(&self, call: &Call) -> Result<Response, SubmitError> {
        if !matches!(call.operation, super::TELEMETRY | super::FINISH) {
            let open = self.lifecycle.check_open(call.operation);
            open.map_err(SubmitError::unsent)?;
        }
        let span = tracing::debug_span!("call", operation = call.operation);
        self.retry(call).instrument(span).await
    }

    async fn retry(&self, call: &Call) -> Result<Response, SubmitError> {
        let key = idempotency_key(call);
        let start = Instant::now();
        let mut retries = 0;
        let mut blocked = Duration::ZERO;
        loop {
            let failed = match self.attempt(call, key.as_ref(), retries).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            let stopped = call.stop_if.is_some_and(|stop_if| stop_if(&failed));
            let failure = failed.failure_kind().filter(|_| !stopped);
            let Some(failure) = failure else {
                return Err(SubmitError {
                    sent: retries > 0 || !matches!(failed, AttemptError::Unsent(_)),
                    error: self.error(call, failed, retries),
                    stopped,
                });
            };
            let policy = self.policy(call, failure);
            let decision = policy::decide(
                policy,
                failure,
                failed.headers(),
                retries,
                start.elapsed().saturating_sub(blocked),
                Timestamp::now(),
                fastrand::f64(),
            );
            if decision == Decision::WaitForBilling && self.billing_may_pause(failed.describe()) {
                // A blocked try is not reported, and does not count against the policy's time.
                blocked += billing::PAUSE;
                tokio::time::sleep(billing::PAUSE).await;
                continue;
            }
            self.report_failure(call, failure, &failed, retries, start);
            match decision {
                Decision::GiveUp | Decision::WaitForBilling => {
                    return Err(SubmitError::sent(self.error(call, failed, retries)));
                }
                Decision::RetryAfter(delay) => {
                    let (kind, status) = (failed.name(), failed.status());
                    tracing::debug!(kind, status, retries, ?delay, "retrying");
                    self.counters.retries.fetch_add(1, Ordering::Relaxed);
                    if retries == 0 && call.operation != super::TELEMETRY {
                        let left = policy.window.saturating_sub(start.elapsed());
                        let remaining = (policy.window < Duration::MAX).then_some(left);
                        self.notify_retry(call, failure, &failed, remaining);
                    }
                    if failure == FailureKind::RateLimited && call.operation != super::TELEMETRY {
                        self.rate_limited(call.operation, start, delay, failed.describe());
                    }
                    retries += 1;
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Returns a call's policy, bounded by the user's patience. A server that has never answered is given
    /// little time: one that answered before is likely to come back.
    fn policy(&self, call: &Call, failure: FailureKind) -> Policy {
        let mut policy = call.policy;
        if let Some(window) = self.address.max_retry_time {
            policy = policy.within(window);
        }
        if failure == FailureKind::Transport && !self.lifecycle.has_answered() {
            policy = policy.within(FIRST_CONTACT);
        }
        policy
    }

    fn report_failure(
        &self,
        call: &Call,
        failure: FailureKind,
        failed: &AttemptError,
        retries: u32,
        start: Instant,
    ) {
        if call.operation == super::TELEMETRY {
            return;
        }
        self.lifecycle.report(|| {
            let now = Timestamp::now().as_duration().as_secs_f64();
            let elapsed = start.elapsed().as_secs_f64();
            CallFailed {
                func: call.operation,
                exception: failed.describe(),
                exception_type: failed.name().to_owned(),
                exception_stack: None,
                status_code: failed.status(),
                is_retryable: reaction(Caller::Call, failure) == Reaction::Retry,
                is_user_error: failed.status().is_some_and(is_user_error),
                attempt_count: retries,
                start_time: now - elapsed,
                current_time: now,
                elapsed_time: elapsed,
            }
        });
    }
}

/// Returns a key that is the same for every try of a call, so that a server can tell a retry from a new
/// call.
fn idempotency_key(call: &Call) -> Option<HeaderValue> {
    let own = |(name, _): &(HeaderName, _)| *name == header::IDEMPOTENCY_KEY;
    if *call.method() == Method::GET || call.headers.iter().any(own) {
        return None;
    }
    HeaderValue::try_from(format!("tinkrs-retry-{}", crate::uuid::v4())).ok()
}
