//! Whether to try a call again, and when.
//!
//! One layer owns the retries of a call, for as long as its [`Policy`] says. The reference
//! client stacks two (ten quick retries inside a five-minute loop), which multiply. Here a call
//! that matters is retried for five minutes, others ten times, with the same delays: the
//! server's own `Retry-After` if it sends one, else exponential with jitter.
//!
//! [`decide`] is pure; the loop around it is in [`retrying`](super::retrying).

use crate::retry::{Backoff, Caller, FailureKind, Reaction, reaction, retry_after};
use http::header::HeaderMap;
use jiff::Timestamp;
use std::time::Duration;
use tinkrs_wire::header;

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// How long a call is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryFor {
    /// Not at all: the caller has a loop of its own.
    Once,
    /// A number of times.
    Times(u32),
    /// Until this much time has passed since the first try.
    Window(Duration),
}

/// What to retry, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) retry_for: RetryFor,
    /// Whether a conflict can clear. Publishing twice cannot.
    pub(crate) retry_conflict: bool,
    /// Whether this layer handles 429; for samples the limiter does.
    pub(crate) retry_rate_limit: bool,
    /// Whether this layer waits while billing is blocked. Other callers fail at once, or wait
    /// themselves.
    pub(crate) wait_for_billing: bool,
}

impl Policy {
    pub(crate) const ONCE: Self = Self {
        retry_for: RetryFor::Once,
        retry_conflict: true,
        retry_rate_limit: true,
        wait_for_billing: false,
    };
    pub(crate) const TEN_TIMES: Self = Self {
        retry_for: RetryFor::Times(10),
        ..Self::ONCE
    };
    pub(crate) const FIVE_MINUTES: Self = Self {
        retry_for: RetryFor::Window(Duration::from_secs(300)),
        wait_for_billing: true,
        ..Self::ONCE
    };

    pub(crate) const fn conflict_is_final(self) -> Self {
        Self {
            retry_conflict: false,
            ..self
        }
    }

    pub(crate) const fn rate_limit_is_final(self) -> Self {
        Self {
            retry_rate_limit: false,
            ..self
        }
    }

    pub(crate) const fn billing_is_final(self) -> Self {
        Self {
            wait_for_billing: false,
            ..self
        }
    }
}

/// What to do about a failed try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Decision {
    RetryAfter(Duration),
    /// Wait if billing allows it, else give up.
    WaitForBilling,
    GiveUp,
}

/// Decides about the failure of try number `retries` (from 0), `elapsed` after the first began,
/// not counting the time that a billing block was waited out.
pub(crate) fn decide(
    policy: Policy,
    failure: FailureKind,
    headers: Option<&HeaderMap>,
    retries: u32,
    elapsed: Duration,
    now: Timestamp,
    random: f64,
) -> Decision {
    match narrowed(policy, failure, headers) {
        Reaction::Retry => {}
        Reaction::WaitForBilling => return Decision::WaitForBilling,
        Reaction::RetryAFewTimes | Reaction::RenewLink | Reaction::Lost | Reaction::Fail => {
            return Decision::GiveUp;
        }
    }
    let delay = headers
        .and_then(|headers| retry_after(headers, now))
        .unwrap_or_else(|| BACKOFF.delay(retries, random));
    match policy.retry_for {
        RetryFor::Once => Decision::GiveUp,
        RetryFor::Times(limit) if retries >= limit => Decision::GiveUp,
        RetryFor::Times(_) => Decision::RetryAfter(delay),
        RetryFor::Window(window) => match window.checked_sub(elapsed) {
            Some(left) if !left.is_zero() => Decision::RetryAfter(delay.min(left)),
            _ => Decision::GiveUp,
        },
    }
}

/// Returns the reaction of a call, narrowed by its policy and by what the server says.
fn narrowed(policy: Policy, failure: FailureKind, headers: Option<&HeaderMap>) -> Reaction {
    match failure {
        FailureKind::BillingBlocked if !policy.wait_for_billing => return Reaction::Fail,
        FailureKind::BillingBlocked => return Reaction::WaitForBilling,
        // The caller handles it, even if the server asks for a retry.
        FailureKind::RateLimited if !policy.retry_rate_limit => return Reaction::Fail,
        _ => {}
    }
    let should_retry = headers.and_then(|headers| headers.get(header::SHOULD_RETRY));
    match should_retry.map(|value| value.as_bytes()) {
        Some(b"true") => Reaction::Retry,
        Some(b"false") => Reaction::Fail,
        _ if failure == FailureKind::Conflict && !policy.retry_conflict => Reaction::Fail,
        _ => reaction(Caller::Call, failure),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use http::header::{HeaderName, HeaderValue};

    pub(crate) fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        pairs.iter().map(pair).collect()
    }

    pub(crate) fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn after_status(policy: Policy, status: u16, pairs: &[(&'static str, &str)]) -> Decision {
        decide(
            policy,
            FailureKind::of_status(status),
            Some(&headers(pairs)),
            0,
            Duration::ZERO,
            now(),
            0.0,
        )
    }

    #[test]
    fn every_retryable_status_is_retried_and_no_other() {
        for status in 400..600 {
            let retried = after_status(Policy::TEN_TIMES, status, &[]) != Decision::GiveUp;
            let expected = matches!(status, 408 | 409 | 429 | 500..);
            assert_eq!(retried, expected, "status {status}");
        }
        assert_eq!(
            after_status(Policy::TEN_TIMES.conflict_is_final(), 409, &[]),
            Decision::GiveUp
        );
        assert_eq!(
            after_status(Policy::TEN_TIMES.rate_limit_is_final(), 429, &[]),
            Decision::GiveUp
        );
    }

    #[test]
    fn a_rate_limit_reaches_its_handler_even_if_the_server_asks_for_a_retry() {
        let policy = Policy::FIVE_MINUTES.rate_limit_is_final();
        assert_eq!(
            after_status(policy, 429, &[("x-should-retry", "true")]),
            Decision::GiveUp
        );
    }

    #[test]
    fn a_billing_block_is_waited_out_only_by_calls_that_are_worth_it() {
        let cases = [
            (Policy::FIVE_MINUTES, Decision::WaitForBilling),
            (Policy::FIVE_MINUTES.billing_is_final(), Decision::GiveUp),
            (Policy::TEN_TIMES, Decision::GiveUp),
            (Policy::ONCE, Decision::GiveUp),
        ];
        for (policy, expected) in cases {
            assert_eq!(after_status(policy, 402, &[]), expected, "{policy:?}");
        }
    }

    #[test]
    fn the_server_can_overrule_the_status() {
        let half = Decision::RetryAfter(Duration::from_millis(500));
        assert_eq!(
            after_status(Policy::TEN_TIMES, 404, &[("x-should-retry", "true")]),
            half
        );
        assert_eq!(
            after_status(Policy::TEN_TIMES, 503, &[("x-should-retry", "false")]),
            Decision::GiveUp
        );
    }

    #[test]
    fn retries_end_by_count_or_by_time() {
        let decide = |policy, retries, elapsed| {
            decide(
                policy,
                FailureKind::Transport,
                None,
                retries,
                Duration::from_secs(elapsed),
                now(),
                0.0,
            )
        };
        let seconds = |s| Decision::RetryAfter(Duration::from_secs(s));
        assert_eq!(decide(Policy::ONCE, 0, 0), Decision::GiveUp);
        assert_eq!(decide(Policy::TEN_TIMES, 9, 9_999), seconds(10));
        assert_eq!(decide(Policy::TEN_TIMES, 10, 0), Decision::GiveUp);
        assert_eq!(decide(Policy::FIVE_MINUTES, 99, 200), seconds(10));
        assert_eq!(
            decide(Policy::FIVE_MINUTES, 99, 297),
            seconds(3),
            "the last try is at the end"
        );
        assert_eq!(decide(Policy::FIVE_MINUTES, 1, 300), Decision::GiveUp);
    }
}
