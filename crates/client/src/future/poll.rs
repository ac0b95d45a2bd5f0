//! Fetching the result of a request.
//!
//! The server holds a poll open for a while, then answers with the result, with "not ready", or
//! with a failure. [`PollState::next`] decides what each answer means. It is a pure function, so
//! every rule is tested without a server or a clock; [`wait`] is the loop that does the I/O.
//!
//! Invariants: "not ready" never ends the polling, and no answer, whatever it is, is polled for in a
//! hot loop.

use crate::Error;
use crate::byte_budget::Reserved;
use crate::connection::Connection;
use crate::connection::billing;
use crate::connection::call::{Call, Response};
use crate::connection::errors::AttemptError;
use crate::connection::policy::Policy;
use crate::future::QueueObserver;
use crate::future::report::{self, Fetched, Report};
use crate::retry::{self, A_FEW_TIMES, Backoff, Caller, FailureKind, Reaction, reaction};
use crate::telemetry::named::PollKind;
use bytes::Bytes;
use http::header::HeaderValue;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tinkrs_types::RequestId;
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::op::retrieve_future::{Reply, RetrieveFutureRequest};
use tinkrs_wire::{endpoint, header};
use tokio::time::Instant;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(45);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), MAX_BACKOFF);
/// Where the protocol asks for another poll at once, the first waits this long: a server that fails at
/// once would be polled in a hot loop.
const FLOOR: Backoff = Backoff::new(Duration::from_millis(250), MAX_BACKOFF);
/// A server that answers "not ready" faster than this does not hold polls; then we wait ourselves.
const QUICK: Duration = Duration::from_millis(200);
const QUICK_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// The request whose result is polled for.
pub(crate) struct PollTarget<'a> {
    pub(crate) operation: &'static str,
    pub(crate) request_id: &'a RequestId,
    pub(crate) request_type: RequestType,
    /// How long the call took that the request was submitted with.
    pub(crate) roundtrip: Duration,
    pub(crate) observer: &'a QueueObserver,
    /// Whether the size of the result is known already, from the batched feed.
    pub(crate) size_known: bool,
    /// The longest result that fits the request.
    pub(crate) max_result_bytes: usize,
}

/// A result that was not decoded yet.
#[derive(Debug)]
pub(crate) struct RawResult {
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    /// Its share of the budget for large results, which is held until it is decoded.
    pub(crate) reserved: Option<Reserved>,
    pub(crate) fetched: Fetched,
}

/// What the polls so far have come to.
#[derive(Clone, Debug, Default)]
pub(super) struct PollState {
    pub(super) backoffs: u32,
    server_errors: u32,
    quick_answers: u32,
    pub(super) bad_requests: u32,
}

/// A poll that gave no result.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NoResult {
    /// [`FailureKind::RequestTimeout`] is "not ready".
    failure: FailureKind,
    /// How long the server held the poll.
    held: Duration,
    /// How long it wants to be left alone.
    retry_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    PollAfter(Duration),
    /// Wait if billing allows it, else fail.
    Billing,
    Lost,
    Fail,
}

impl PollState {
    fn next(&mut self, poll: NoResult, random: f64) -> Step {
        let failure = poll.failure;
        if !matches!(failure, FailureKind::Transport | FailureKind::RateLimited) {
            self.backoffs = 0;
        }
        if failure != FailureKind::ServerError {
            self.server_errors = 0;
        }
        match (reaction(Caller::Poll, failure), failure) {
            (Reaction::Retry, FailureKind::RequestTimeout) => self.not_ready(poll.held, random),
            (Reaction::Retry, FailureKind::ServerError) => {
                self.server_errors += 1;
                let delay = || FLOOR.delay(self.server_errors - 1, random);
                Step::PollAfter(poll.retry_after.unwrap_or_else(delay))
            }
            (Reaction::Retry, _) => {
                self.backoffs += 1;
                let delay = || BACKOFF.delay(self.backoffs - 1, random);
                Step::PollAfter(poll.retry_after.unwrap_or_else(delay))
            }
            (Reaction::RetryAFewTimes, _) if self.bad_requests < A_FEW_TIMES => {
                self.bad_requests += 1;
                Step::PollAfter(FLOOR.delay(self.bad_requests - 1, random))
            }
            (Reaction::WaitForBilling, _) => Step::Billing,
            (Reaction::Lost, _) => Step::Lost,
            (Reaction::RetryAFewTimes | Reaction::RenewLink | Reaction::Fail, _) => Step::Fail,
        }
    }

    /// Whether the last poll was the first of an outage.
    fn is_first_failure(&self) -> bool {
        self.backoffs + self.server_errors == 1
    }

    fn not_ready(&mut self, held: Duration, random: f64) -> Step {
        self.bad_requests = 0;
        if held >= QUICK {
            self.quick_answers = 0;
            return Step::PollAfter(Duration::ZERO);
        }
        self.quick_answers += 1;
        Step::PollAfter(QUICK_BACKOFF.delay(self.quick_answers - 1, random))
    }
}

/// Polls until the request is done, or the client is closed.
pub(crate) async fn wait(
    connection: &Connection,
    target: &PollTarget<'_>,
) -> Result<RawResult, Error> {
    let operation = target.operation;
    tokio::select! {
        biased;
        result = wait_regardless(connection, target) => result,
        () = connection.lifecycle.ended() => Err(Error::Closed { operation }),
    }
}

/// Polls until the request is done, and parses its result, which is JSON.
pub(crate) async fn wait_json<T: DeserializeOwned>(
    connection: &Connection,
    target: &PollTarget<'_>,
) -> Result<T, Error> {
    let RawResult { body, fetched, .. } = wait(connection, target).await?;
    serde_json::from_slice(&body)
        .map_err(|error| Error::answer(target.operation, error))
        .inspect_err(|error| {
            let (request_id, request_type) = (target.request_id, target.request_type);
            report::unreadable(connection, request_id, request_type, fetched, error);
        })
}

/// Polls until the request is done. The caller notices when the client is closed.
pub(crate) async fn wait_regardless(
    connection: &Connection,
    target: &PollTarget<'_>,
) -> Result<RawResult, Error> {
    let mut wait = Wait {
        connection,
        target,
        report: Report::new(connection, target),
        state: PollState::default(),
        allow_metadata_only: !target.size_known,
        reserved: None,
    };
    for iteration in 0_u64.. {
        let call = poll_call(target, iteration, wait.allow_metadata_only);
        let start = Instant::now();
        let (poll, failed) = match connection.attempt(&call, None, 0).await {
            Ok(response) => match wait.take(response, iteration).await? {
                Taken::Result(result) => return Ok(result),
                Taken::Size => continue,
                Taken::NotReady => (not_ready(start.elapsed()), None),
            },
            Err(failed) => match no_result(&failed, start.elapsed()) {
                Some(poll) => (poll, Some(failed)),
                None => return Err(connection.error(&call, failed, 0)),
            },
        };
        let before = wait.state.clone();
        let step = wait.state.next(poll, fastrand::f64());
        let reason = || failed.as_ref().map(AttemptError::describe);
        let billing_pauses =
            step == Step::Billing && connection.billing_may_pause(reason().unwrap_or_default());
        // A billing block that is waited out is not reported.
        if let Some(failed) = failed.as_ref().filter(|_| !billing_pauses) {
            wait.tell(&call, failed, (poll.failure, step), iteration, &before);
        }
        match (step, failed) {
            (Step::PollAfter(Duration::ZERO), _) => {}
            (Step::PollAfter(delay), _) => tokio::time::sleep(delay).await,
            (Step::Billing, _) if billing_pauses => tokio::time::sleep(billing::PAUSE).await,
            (Step::Billing | Step::Fail, Some(failed)) => {
                return Err(connection.error(&call, failed, 0));
            }
            (Step::Lost | Step::Billing | Step::Fail, _) => {
                let (operation, request_id) = (target.operation, target.request_id.clone());
                return Err(Error::PromiseLost {
                    operation,
                    request_id,
                });
            }
        }
    }
    unreachable!("the iterations do not end")
}

/// A wait for one result, with what its polls have come to.
struct Wait<'a> {
    connection: &'a Connection,
    target: &'a PollTarget<'a>,
    report: Report<'a>,
    state: PollState,
    /// Whether the server may send the size of a large result first: it is not known yet.
    allow_metadata_only: bool,
    /// The share of the budget for a large result, once its size is known.
    reserved: Option<Reserved>,
}

/// What a successful response has brought.
enum Taken {
    Result(RawResult),
    NotReady,
    /// The size of the result, for which there is room now.
    Size,
}

impl Wait<'_> {
    async fn take(&mut self, response: Response, iteration: u64) -> Result<Taken, Error> {
        let (connection, target) = (self.connection, self.target);
        let read = read(target, response);
        match read.inspect_err(|error| self.report.failed(error, iteration))? {
            Read::Result((content_type, body)) => {
                connection.server.limiter.queue_active();
                let is_protobuf = content_type.starts_with(header::PROTOBUF);
                Ok(Taken::Result(RawResult {
                    fetched: Fetched {
                        iteration,
                        elapsed: self.report.elapsed(),
                        proto_bytes_len: is_protobuf.then_some(body.len()),
                    },
                    content_type,
                    body,
                    reserved: self.reserved.take(),
                }))
            }
            Read::NotReady(status) => {
                target.observer.saw(connection, &status);
                Ok(Taken::NotReady)
            }
            Read::Large { size_bytes } if size_bytes > target.max_result_bytes as u64 => {
                let limit = target.max_result_bytes;
                let message = format!(
                    "the result has {size_bytes} bytes, and at most {limit} fit the request"
                );
                Err(Error::answer(target.operation, message))
            }
            Read::Large { size_bytes } if self.allow_metadata_only => {
                self.reserved = Some(connection.server.result_bytes.take(size_bytes).await);
                self.allow_metadata_only = false;
                Ok(Taken::Size)
            }
            Read::Large { .. } => {
                let message = "only the size of the result, again";
                Err(Error::answer(target.operation, message))
            }
        }
    }

    /// Tells the user and the server of a failed poll. `before` is the state that it was made in.
    fn tell(
        &self,
        call: &Call,
        failed: &AttemptError,
        (failure, step): (FailureKind, Step),
        iteration: u64,
        before: &PollState,
    ) {
        let (connection, target) = (self.connection, self.target);
        if failure == FailureKind::RequestTimeout {
            if let Some(status) = &failed.queue_status() {
                target.observer.saw(connection, status);
            }
            let kind = PollKind::Retry;
            self.report
                .failed_poll(call, failed, kind, iteration, before);
            return;
        }
        if self.state.is_first_failure() && matches!(step, Step::PollAfter(_)) {
            connection.notify_retry(call, failure, failed, None);
        }
        if let (FailureKind::RateLimited, Step::PollAfter(delay)) = (failure, step) {
            let reason = failed.describe();
            connection.rate_limited(target.operation, Instant::now(), delay, reason);
        }
        let kind = kind(failure, step);
        self.report
            .failed_poll(call, failed, kind, iteration, before);
    }
}

fn not_ready(held: Duration) -> NoResult {
    NoResult {
        failure: FailureKind::RequestTimeout,
        held,
        retry_after: None,
    }
}

/// Describes a failed poll; `None` if another would fail like this one.
fn no_result(failed: &AttemptError, held: Duration) -> Option<NoResult> {
    let headers = failed.headers();
    Some(NoResult {
        failure: failed.failure_kind()?,
        held,
        retry_after: headers.and_then(|headers| retry::retry_after(headers, Timestamp::now())),
    })
}

/// Says what is done about a failed poll, in the words of reports.
fn kind(failure: FailureKind, step: Step) -> PollKind {
    match (step, failure) {
        (Step::Lost, _) => PollKind::RetryableException,
        (Step::Fail | Step::Billing, _) => PollKind::Fatal,
        (_, FailureKind::BadRequest) => PollKind::RetryIfBudget,
        (_, FailureKind::ServerError) => PollKind::Retry,
        _ => PollKind::RetryWithBackoff,
    }
}

fn poll_call(target: &PollTarget<'_>, iteration: u64, allow_metadata_only: bool) -> Call {
    let request = RetrieveFutureRequest {
        request_id: target.request_id.clone(),
        allow_metadata_only,
    };
    let mut call = Call::new(&endpoint::RETRIEVE_FUTURE)
        .named(target.operation)
        .json(&request)
        .policy(Policy::ONCE)
        .timeout(TIMEOUT)
        .max_response_bytes(target.max_result_bytes)
        .header(header::REQUEST_ITERATION, iteration.into())
        .header(
            header::REQUEST_TYPE,
            HeaderValue::from_static(target.request_type.name()),
        );
    if matches!(
        target.request_type,
        RequestType::Sample | RequestType::Forward | RequestType::ForwardBackward
    ) {
        call.accept = header::PROTOBUF;
    }
    if iteration == 0
        && let Ok(seconds) =
            HeaderValue::from_str(&format!("{:.6}", target.roundtrip.as_secs_f64()))
    {
        call = call.header(header::CREATE_PROMISE_ROUNDTRIP_TIME, seconds);
    }
    call
}

/// What a successful response says.
enum Read {
    /// Its content type and its bytes.
    Result((String, Bytes)),
    NotReady(tinkrs_types::protocol::QueueStatus),
    Large {
        size_bytes: u64,
    },
}

fn read(target: &PollTarget<'_>, response: Response) -> Result<Read, Error> {
    let content_type = response.content_type().to_owned();
    let reply = Reply::decode(&content_type, response.body)
        .map_err(|error| Error::answer(target.operation, error))?;
    Ok(match reply {
        Reply::Message(body) | Reply::Json(body) => Read::Result((content_type, body)),
        Reply::TryAgain(status) => Read::NotReady(status),
        Reply::MetadataOnly { size_bytes } => Read::Large { size_bytes },
        Reply::Failed(failed) => {
            return Err(Error::RequestFailed {
                operation: target.operation,
                request_id: target.request_id.clone(),
                category: failed.category,
                message: failed.error,
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    const BROKEN: NoResult = NoResult {
        failure: FailureKind::Transport,
        held: Duration::ZERO,
        retry_after: None,
    };

    fn status(status: u16, retry_after: Option<Duration>) -> NoResult {
        NoResult {
            failure: FailureKind::of_status(status),
            held: Duration::ZERO,
            retry_after,
        }
    }

    #[test]
    fn each_poll_without_a_result_has_one_next_step() {
        let cases = [
            (
                not_ready(Duration::from_secs(30)),
                Step::PollAfter(Duration::ZERO),
            ),
            (not_ready(MS(1)), Step::PollAfter(MS(20))),
            (BROKEN, Step::PollAfter(MS(1_000))),
            (status(500, None), Step::PollAfter(MS(250))),
            (status(429, None), Step::PollAfter(MS(1_000))),
            (status(429, Some(MS(7_000))), Step::PollAfter(MS(7_000))),
            (status(400, None), Step::PollAfter(MS(250))),
            (status(402, None), Step::Billing),
            (status(410, None), Step::Lost),
            (status(401, None), Step::Fail),
            (status(404, None), Step::Fail),
            (status(409, None), Step::Fail),
            (status(422, None), Step::Fail),
        ];
        for (poll, expected) in cases {
            assert_eq!(PollState::default().next(poll, 0.0), expected, "{poll:?}");
        }
    }

    #[test]
    fn no_answer_is_polled_for_in_a_hot_loop() {
        for poll in [not_ready(Duration::ZERO), BROKEN, status(503, None)] {
            let mut state = PollState::default();
            let mut waited = Duration::ZERO;
            for _ in 0..20 {
                let Step::PollAfter(delay) = state.next(poll, 1.0) else {
                    panic!("{poll:?}")
                };
                assert!(delay > Duration::ZERO && delay <= MAX_BACKOFF);
                waited += delay;
            }
            assert!(
                waited > Duration::from_secs(5),
                "{poll:?} waited {waited:?} in 20 polls"
            );
        }
    }

    #[test]
    fn the_fourth_bad_request_fails_unless_a_not_ready_came_between() {
        let mut state = PollState::default();
        for _ in 0..A_FEW_TIMES {
            assert!(matches!(
                state.next(status(400, None), 0.0),
                Step::PollAfter(_)
            ));
        }
        assert_eq!(state.next(status(400, None), 0.0), Step::Fail);
        state.next(not_ready(MS(500)), 0.0);
        assert!(matches!(
            state.next(status(400, None), 0.0),
            Step::PollAfter(_)
        ));
    }

    #[test]
    fn backing_off_starts_over_after_an_answer() {
        let mut state = PollState::default();
        let too_many = status(429, None);
        let outcomes = [BROKEN, too_many, BROKEN].into_iter();
        for (poll, expected) in outcomes.cycle().zip([1, 2, 4, 8, 16, 30, 30]) {
            assert_eq!(state.next(poll, 0.0), Step::PollAfter(MS(expected * 1_000)));
        }
        for answer in [not_ready(MS(500)), status(500, None)] {
            state.next(answer, 0.0);
            assert_eq!(state.next(BROKEN, 0.0), Step::PollAfter(MS(1_000)));
        }
    }
}
