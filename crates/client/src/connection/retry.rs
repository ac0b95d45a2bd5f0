//! Whether to try a call again, and when.
//!
//! One layer owns the retries of a call, for as long as its [`Policy`] says. The reference
//! client stacks two (ten quick retries inside a five-minute loop), which multiply. Here a call
//! that matters is retried for five minutes, others ten times, with the same delays: the
//! server's own wish if it states one, else exponential with jitter.
//!
//! [`decide`] is pure; the loop around it is in [`submit`](super::submit).

use http::StatusCode;
use http::header::HeaderMap;
use jiff::Timestamp;
use std::time::Duration;
use tinkrs_wire::header;

/// The longest wish for a delay that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
const BASE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// How long a call is worth retrying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all: the caller has a loop of its own.
    Once,
    /// A number of times.
    Retries(u32),
    /// As long as this much time has passed since the first try.
    Window(Duration),
}

/// What to retry, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) patience: Patience,
    /// Whether a conflict can clear. Publishing twice cannot.
    pub(crate) retry_conflict: bool,
    /// Whether this layer handles 429; for samples the limiter does.
    pub(crate) retry_rate_limit: bool,
    /// Whether this layer waits out a billing block. Others hear of it at once, or wait
    /// themselves.
    pub(crate) wait_for_billing: bool,
}

impl Policy {
    pub(crate) const ONCE: Self = Self {
        patience: Patience::Once,
        retry_conflict: true,
        retry_rate_limit: true,
        wait_for_billing: false,
    };
    pub(crate) const TEN_TIMES: Self = Self {
        patience: Patience::Retries(10),
        ..Self::ONCE
    };
    pub(crate) const FIVE_MINUTES: Self = Self {
        patience: Patience::Window(Duration::from_secs(300)),
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

/// How a try failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure<'a> {
    /// The connection broke, or the answer took too long.
    Transport,
    /// The server answered with an error status.
    Status(StatusCode, &'a HeaderMap),
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
    failure: Failure<'_>,
    retries: u32,
    elapsed: Duration,
    now: Timestamp,
    random: f64,
) -> Decision {
    if matches!(failure, Failure::Status(StatusCode::PAYMENT_REQUIRED, _)) {
        return match policy.wait_for_billing {
            true => Decision::WaitForBilling,
            false => Decision::GiveUp,
        };
    }
    if !is_retryable(policy, failure) {
        return Decision::GiveUp;
    }
    let delay = match failure {
        Failure::Status(_, headers) => retry_after(headers, now),
        Failure::Transport => None,
    }
    .unwrap_or_else(|| backoff(BASE_DELAY, MAX_DELAY, retries, random));
    match policy.patience {
        Patience::Once => Decision::GiveUp,
        Patience::Retries(limit) if retries >= limit => Decision::GiveUp,
        Patience::Retries(_) => Decision::RetryAfter(delay),
        Patience::Window(window) => match window.checked_sub(elapsed) {
            Some(left) if !left.is_zero() => Decision::RetryAfter(delay.min(left)),
            _ => Decision::GiveUp,
        },
    }
}

fn is_retryable(policy: Policy, failure: Failure<'_>) -> bool {
    let Failure::Status(status, headers) = failure else {
        return true;
    };
    if status == StatusCode::TOO_MANY_REQUESTS && !policy.retry_rate_limit {
        // Whoever handles it must hear of it, whatever the server wishes.
        return false;
    }
    match headers
        .get(header::SHOULD_RETRY)
        .map(|value| value.as_bytes())
    {
        Some(b"true") => return true,
        Some(b"false") => return false,
        _ => {}
    }
    match status.as_u16() {
        408 => true,
        409 => policy.retry_conflict,
        429 => true,
        status => status >= 500,
    }
}

/// Doubles from `base` up to `max`, less up to a quarter, so that clients do not come back all
/// at once.
pub(crate) fn backoff(base: Duration, max: Duration, retries: u32, random: f64) -> Duration {
    let doubled = base.saturating_mul(2_u32.saturating_pow(retries.min(30)));
    doubled
        .min(max)
        .mul_f64(1.0 - 0.25 * random.clamp(0.0, 1.0))
}

/// Reads how long the server wishes to be left alone: milliseconds, seconds, or a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let milliseconds = || Some(text(header::RETRY_AFTER_MS)?.parse::<f64>().ok()? / 1000.0);
    let seconds = || text(header::RETRY_AFTER)?.parse::<f64>().ok();
    let date = || {
        let date = jiff::fmt::rfc2822::parse(text(header::RETRY_AFTER)?).ok()?;
        Some(date.timestamp().duration_since(now).as_secs_f64())
    };
    let wish = milliseconds().or_else(seconds).or_else(date)?;
    let wish = Duration::try_from_secs_f64(wish).ok()?;
    (!wish.is_zero() && wish <= MAX_RETRY_AFTER).then_some(wish)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        pairs.iter().map(pair).collect()
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn after_status(policy: Policy, status: u16, pairs: &[(&'static str, &str)]) -> Decision {
        let status = StatusCode::from_u16(status).unwrap();
        decide(
            policy,
            Failure::Status(status, &headers(pairs)),
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
    fn a_rate_limit_reaches_whoever_handles_it_even_if_the_server_wants_a_retry() {
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
    fn retry_after_is_read_in_milliseconds_seconds_and_as_a_date() {
        let ms = |ms| Some(Duration::from_millis(ms));
        type Pairs<'a> = &'a [(&'static str, &'a str)];
        let cases: [(Pairs<'_>, Option<Duration>); 10] = [
            (&[("retry-after-ms", "1500")], ms(1500)),
            (&[("retry-after", "2.5")], ms(2500)),
            (
                &[("retry-after-ms", "soon"), ("retry-after", "2")],
                ms(2000),
            ),
            (
                &[("retry-after", "Fri, 02 Jan 2026 03:04:15 GMT")],
                ms(10_000),
            ),
            (&[("retry-after", "Fri, 02 Jan 2026 03:04:00 GMT")], None),
            (&[("retry-after", "60")], ms(60_000)),
            (&[("retry-after", "61")], None),
            (&[("retry-after", "0")], None),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "tomorrow")], None),
        ];
        for (pairs, expected) in cases {
            assert_eq!(retry_after(&headers(pairs), now()), expected, "{pairs:?}");
        }
    }

    #[test]
    fn patience_ends_by_count_or_by_time() {
        let decide = |policy, retries, elapsed| {
            decide(
                policy,
                Failure::Transport,
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

    #[test]
    fn delays_double_and_jitter_only_shortens_them() {
        let delay = |retries, random| backoff(BASE_DELAY, MAX_DELAY, retries, random).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 99].map(|n| delay(n, 0.0)),
            [500, 1000, 2000, 4000, 8000, 10_000, 10_000]
        );
        assert_eq!(delay(0, 1.0), 375);
    }
}
