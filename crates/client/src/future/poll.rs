//! Fetching the result of a request.
//!
//! The server holds a poll open for a while, then answers with the result, with "not yet", or
//! with a failure. [`Patience::next`] decides what each answer means. It is a pure function, so
//! every rule is tested without a server or a clock; [`wait`] is the loop that does the I/O.
//!
//! Invariants: "not yet" is never given up on, and no answer, whatever it is, is polled for in a
//! hot loop.

use crate::Error;
use crate::byte_budget::Taken;
use crate::connection::Connection;
use crate::connection::billing;
use crate::connection::call::{Answer, Call};
use crate::connection::fault::Fault;
use crate::connection::retry::{self, Policy};
use crate::future::QueueObserver;
use crate::future::report::Report;
use crate::telemetry::named::PollKind;
use bytes::Bytes;
use http::header::HeaderValue;
use jiff::Timestamp;
use std::time::Duration;
use tinkrs_types::RequestId;
use tinkrs_types::protocol::RequestType;
use tinkrs_wire::op::retrieve_future::{Reply, RetrieveFutureRequest};
use tinkrs_wire::{header, route};
use tokio::time::Instant;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(45);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
const BACKOFF: Duration = Duration::from_secs(1);
/// Where the protocol asks for another poll at once, this much is waited, and twice as long each
/// time: a server that fails at once would be polled in a hot loop.
const FLOOR: Duration = Duration::from_millis(250);
/// A server that answers "not yet" faster than this does not hold polls; then we wait ourselves.
const QUICK: Duration = Duration::from_millis(200);
const QUICK_BACKOFF: Duration = Duration::from_millis(20);
const MAX_QUICK_BACKOFF: Duration = Duration::from_secs(1);
const BAD_REQUESTS: u32 = 3;

/// What is waited for.
pub(crate) struct Wanted<'a> {
    pub(crate) operation: &'static str,
    pub(crate) request_id: &'a RequestId,
    pub(crate) request_type: RequestType,
    /// How long the call took that the request was submitted with.
    pub(crate) roundtrip: Duration,
    pub(crate) observer: &'a QueueObserver,
    /// Whether the size of the result is known already, from the batched feed.
    pub(crate) size_known: bool,
}

/// A result: its content type and its bytes.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    /// Its share of the budget for large results, which is held until it is decoded.
    pub(crate) reserved: Option<Taken>,
}

/// What the loop has been through.
#[derive(Debug, Default)]
pub(super) struct Patience {
    pub(super) backoffs: u32,
    server_errors: u32,
    quick_answers: u32,
    pub(super) bad_requests: u32,
}

/// What a poll came to, as far as patience is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// The server answered "not yet" after this long.
    NotYet(Duration),
    /// The connection broke.
    Broken,
    /// The server answered with this status, and with a wish for a delay.
    Status(u16, Option<Duration>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    PollAfter(Duration),
    /// Wait if billing allows it, else fail.
    Billing,
    Lost,
    Fail,
}

impl Patience {
    fn next(&mut self, outcome: Outcome, random: f64) -> Step {
        if !matches!(outcome, Outcome::Broken | Outcome::Status(429, _)) {
            self.backoffs = 0;
        }
        if !matches!(outcome, Outcome::Status(500.., _)) {
            self.server_errors = 0;
        }
        match outcome {
            Outcome::NotYet(held) => {
                self.bad_requests = 0;
                if held >= QUICK {
                    self.quick_answers = 0;
                    return Step::PollAfter(Duration::ZERO);
                }
                self.quick_answers += 1;
                let quick = self.quick_answers - 1;
                Step::PollAfter(retry::backoff(
                    QUICK_BACKOFF,
                    MAX_QUICK_BACKOFF,
                    quick,
                    random,
                ))
            }
            Outcome::Broken => Step::PollAfter(self.back_off(None, random)),
            Outcome::Status(429, wish) => Step::PollAfter(self.back_off(wish, random)),
            Outcome::Status(500.., wish) => {
                self.server_errors += 1;
                let errors = self.server_errors - 1;
                let delay = || retry::backoff(FLOOR, MAX_BACKOFF, errors, random);
                Step::PollAfter(wish.unwrap_or_else(delay))
            }
            Outcome::Status(402, _) => Step::Billing,
            Outcome::Status(410, _) => Step::Lost,
            Outcome::Status(400, _) if self.bad_requests < BAD_REQUESTS => {
                self.bad_requests += 1;
                let bad = self.bad_requests - 1;
                Step::PollAfter(retry::backoff(FLOOR, MAX_BACKOFF, bad, random))
            }
            Outcome::Status(..) => Step::Fail,
        }
    }

    fn back_off(&mut self, wish: Option<Duration>, random: f64) -> Duration {
        self.backoffs += 1;
        wish.unwrap_or_else(|| retry::backoff(BACKOFF, MAX_BACKOFF, self.backoffs - 1, random))
    }
}

/// Polls until the request is done, or the client is closed.
pub(crate) async fn wait(connection: &Connection, wanted: &Wanted<'_>) -> Result<Fetched, Error> {
    let operation = wanted.operation;
    tokio::select! {
        biased;
        result = wait_regardless(connection, wanted) => result,
        () = connection.ended() => Err(Error::Closed { operation }),
    }
}

/// Polls until the request is done. The caller notices when the client is closed.
pub(crate) async fn wait_regardless(
    connection: &Connection,
    wanted: &Wanted<'_>,
) -> Result<Fetched, Error> {
    let report = Report::new(connection, wanted);
    let mut patience = Patience::default();
    let mut allow_metadata_only = !wanted.size_known;
    let mut reserved = None;
    for iteration in 0_u64.. {
        let call = poll_call(wanted, iteration, allow_metadata_only);
        let start = Instant::now();
        let (outcome, fault) = match connection.attempt(&call, None, 0).await {
            Ok(answer) => {
                match read(wanted, answer).inspect_err(|e| report.failed(e, iteration))? {
                    Read::Result(result) => {
                        connection.limiter.queue_active();
                        return Ok(Fetched { reserved, ..result });
                    }
                    Read::NotYet(status) => {
                        wanted.observer.saw(connection, &status);
                        (Outcome::NotYet(start.elapsed()), None)
                    }
                    Read::Large { size_bytes } if allow_metadata_only => {
                        reserved = Some(connection.result_bytes.take(size_bytes).await);
                        allow_metadata_only = false;
                        continue;
                    }
                    Read::Large { .. } => {
                        let message = "only the size of the result, again";
                        return Err(Error::answer(wanted.operation, message));
                    }
                }
            }
            Err(Fault::Local(error)) => return Err(error),
            Err(fault) => (outcome(&fault, start.elapsed()), Some(fault)),
        };
        let step = patience.next(outcome, fastrand::f64());
        if let Some(fault) = &fault {
            match outcome {
                Outcome::NotYet(_) => fault.queue_status().iter().for_each(|status| {
                    wanted.observer.saw(connection, status);
                }),
                // A billing block that is waited out is not reported.
                Outcome::Status(402, _) => {}
                _ => report.fault(&call, fault, kind(outcome, step), iteration, &patience),
            }
        }
        match (step, fault) {
            (Step::PollAfter(Duration::ZERO), _) => {}
            (Step::PollAfter(delay), _) => tokio::time::sleep(delay).await,
            (Step::Billing, _) if connection.billing_may_pause() => {
                tokio::time::sleep(billing::PAUSE).await;
            }
            (Step::Billing | Step::Fail, Some(fault)) => {
                return Err(connection.error(&call, fault, 0));
            }
            (Step::Lost | Step::Billing | Step::Fail, _) => {
                let (operation, request_id) = (wanted.operation, wanted.request_id.clone());
                return Err(Error::PromiseLost {
                    operation,
                    request_id,
                });
            }
        }
    }
    unreachable!("the iterations do not end")
}

/// Says what a fault means to patience.
fn outcome(fault: &Fault, held: Duration) -> Outcome {
    match fault {
        Fault::Status { status, .. } if status.as_u16() == 408 => Outcome::NotYet(held),
        Fault::Status {
            status, headers, ..
        } => Outcome::Status(
            status.as_u16(),
            retry::retry_after(headers, Timestamp::now()),
        ),
        Fault::Connection(_) | Fault::Timeout | Fault::Local(_) => Outcome::Broken,
    }
}

/// Says what is done about a failed poll, in the words of reports.
fn kind(outcome: Outcome, step: Step) -> PollKind {
    match (step, outcome) {
        (Step::Lost, _) => PollKind::RetryableException,
        (Step::Fail, _) => PollKind::Fatal,
        (_, Outcome::Status(400, _)) => PollKind::RetryIfBudget,
        (_, Outcome::Status(500.., _)) => PollKind::Retry,
        _ => PollKind::RetryWithBackoff,
    }
}

fn poll_call(wanted: &Wanted<'_>, iteration: u64, allow_metadata_only: bool) -> Call {
    let request = RetrieveFutureRequest {
        request_id: wanted.request_id.clone(),
        allow_metadata_only,
    };
    let mut call = Call::post(wanted.operation, route::RETRIEVE_FUTURE, &request)
        .policy(Policy::ONCE)
        .timeout(TIMEOUT)
        .header(header::REQUEST_ITERATION, iteration.into())
        .header(
            header::REQUEST_TYPE,
            HeaderValue::from_static(wanted.request_type.name()),
        );
    if matches!(
        wanted.request_type,
        RequestType::Sample | RequestType::Forward | RequestType::ForwardBackward
    ) {
        call.accept = header::PROTOBUF;
    }
    if iteration == 0
        && let Ok(seconds) =
            HeaderValue::from_str(&format!("{:.6}", wanted.roundtrip.as_secs_f64()))
    {
        call = call.header(header::CREATE_PROMISE_ROUNDTRIP_TIME, seconds);
    }
    call
}

/// What a successful answer says.
enum Read {
    Result(Fetched),
    NotYet(tinkrs_types::protocol::QueueStatus),
    Large { size_bytes: u64 },
}

fn read(wanted: &Wanted<'_>, answer: Answer) -> Result<Read, Error> {
    let content_type = answer.content_type().to_owned();
    let reply = Reply::decode(&content_type, answer.body)
        .map_err(|error| Error::answer(wanted.operation, error))?;
    Ok(match reply {
        Reply::Message(body) | Reply::Json(body) => Read::Result(Fetched {
            content_type,
            body,
            reserved: None,
        }),
        Reply::TryAgain(status) => Read::NotYet(status),
        Reply::MetadataOnly { size_bytes } => Read::Large { size_bytes },
        Reply::Failed(failed) => {
            return Err(Error::RequestFailed {
                operation: wanted.operation,
                request_id: wanted.request_id.clone(),
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

    #[test]
    fn each_outcome_has_one_next_step() {
        let cases = [
            (
                Outcome::NotYet(Duration::from_secs(30)),
                Step::PollAfter(Duration::ZERO),
            ),
            (Outcome::NotYet(MS(1)), Step::PollAfter(MS(20))),
            (Outcome::Broken, Step::PollAfter(MS(1_000))),
            (Outcome::Status(500, None), Step::PollAfter(MS(250))),
            (Outcome::Status(429, None), Step::PollAfter(MS(1_000))),
            (
                Outcome::Status(429, Some(MS(7_000))),
                Step::PollAfter(MS(7_000)),
            ),
            (Outcome::Status(400, None), Step::PollAfter(MS(250))),
            (Outcome::Status(402, None), Step::Billing),
            (Outcome::Status(410, None), Step::Lost),
            (Outcome::Status(401, None), Step::Fail),
            (Outcome::Status(404, None), Step::Fail),
            (Outcome::Status(409, None), Step::Fail),
            (Outcome::Status(422, None), Step::Fail),
        ];
        for (outcome, expected) in cases {
            assert_eq!(
                Patience::default().next(outcome, 0.0),
                expected,
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn no_answer_is_polled_for_in_a_hot_loop() {
        for outcome in [
            Outcome::NotYet(Duration::ZERO),
            Outcome::Broken,
            Outcome::Status(503, None),
        ] {
            let mut patience = Patience::default();
            let mut waited = Duration::ZERO;
            for _ in 0..20 {
                let Step::PollAfter(delay) = patience.next(outcome, 1.0) else {
                    panic!("{outcome:?}")
                };
                assert!(delay > Duration::ZERO && delay <= MAX_BACKOFF);
                waited += delay;
            }
            assert!(
                waited > Duration::from_secs(5),
                "{outcome:?} waited {waited:?} in 20 polls"
            );
        }
    }

    #[test]
    fn the_fourth_bad_request_fails_unless_a_not_yet_came_between() {
        let mut patience = Patience::default();
        for _ in 0..BAD_REQUESTS {
            assert!(matches!(
                patience.next(Outcome::Status(400, None), 0.0),
                Step::PollAfter(_)
            ));
        }
        assert_eq!(patience.next(Outcome::Status(400, None), 0.0), Step::Fail);
        patience.next(Outcome::NotYet(MS(500)), 0.0);
        assert!(matches!(
            patience.next(Outcome::Status(400, None), 0.0),
            Step::PollAfter(_)
        ));
    }

    #[test]
    fn backing_off_starts_over_after_an_answer() {
        let mut patience = Patience::default();
        let too_many = Outcome::Status(429, None);
        let outcomes = [Outcome::Broken, too_many, Outcome::Broken].into_iter();
        for (outcome, expected) in outcomes.cycle().zip([1, 2, 4, 8, 16, 30, 30]) {
            assert_eq!(
                patience.next(outcome, 0.0),
                Step::PollAfter(MS(expected * 1_000))
            );
        }
        for answer in [Outcome::NotYet(MS(500)), Outcome::Status(500, None)] {
            patience.next(answer, 0.0);
            assert_eq!(
                patience.next(Outcome::Broken, 0.0),
                Step::PollAfter(MS(1_000))
            );
        }
    }
}
