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

/// How long a server that has never answered is tried: somebody may wait for the reason.
pub(crate) const FIRST_CONTACT: Duration = Duration::from_secs(15);
/// How long each of those tries may take, so that a server that never answers at all is an error after 25 s.
pub(crate) const FIRST_CONTACT_TIMEOUT: Duration = Duration::from_secs(10);

/// What to retry, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// How often a call is tried again. A caller with a loop of its own wants none.
    pub(crate) max_retries: u32,
    /// How long after its first try a call is still tried again.
    pub(crate) window: Duration,
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
        max_retries: 0,
        window: Duration::MAX,
        retry_conflict: true,
        retry_rate_limit: true,
        wait_for_billing: false,
    };
    pub(crate) const TEN_TIMES: Self = Self {
        max_retries: 10,
        ..Self::ONCE
    };
    pub(crate) const FIVE_MINUTES: Self = Self {
        max_retries: u32::MAX,
        window: Duration::from_secs(300),
        wait_for_billing: true,
        ..Self::ONCE
    };

    /// Tries again for no longer than this.
    pub(crate) fn within(self, window: Duration) -> Self {
        Self {
            window: self.window.min(window),
            ..self
        }
    }

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
    let left = policy.window.saturating_sub(elapsed);
    if retries >= policy.max_retries || left.is_zero() {
        return Decision::GiveUp;
    }
    Decision::RetryAfter(delay.min(left))
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
        for policy in [Policy::TEN_TIMES, Policy::FIVE_MINUTES] {
            let policy = policy.within(FIRST_CONTACT);
            assert_eq!(decide(policy, 3, 12), seconds(3), "{policy:?}");
            assert_eq!(decide(policy, 3, 15), Decision::GiveUp, "{policy:?}");
        }
    }
}
