//! What a failed exchange means, and how long to wait before the next try.
//!
//! This is the only place that knows which statuses are worth another try. [`FailureKind::of_status`]
//! sorts them, [`reaction`] is the table of what each kind of caller does about each kind of failure, and
//! [`Backoff`] is the one formula for delays. All of it is pure. The loops around it are
//! `connection::retrying` (calls), `future::poll` (results), `sampling::completion_feed`,
//! `sampling::retry` (whole samples) and `download`.

use http::header::HeaderMap;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::tz::TimeZone;
use std::time::Duration;
use tinkrs_wire::header;

/// How often in a row [`Reaction::RetryAFewTimes`] tries again.
pub(crate) const A_FEW_TIMES: u32 = 3;
/// The longest `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Why there is no usable response, as far as another try is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The connection failed or timed out.
    Transport,
    /// 400.
    BadRequest,
    /// 401 or 403.
    Denied,
    /// 402.
    BillingBlocked,
    /// 408: the server stopped waiting. Polls get it when the result is not ready.
    RequestTimeout,
    /// 409.
    Conflict,
    /// 410.
    Gone,
    /// 425.
    TooEarly,
    /// 429.
    RateLimited,
    /// 500 and above.
    ServerError,
    /// Any other status.
    Rejected,
}

impl FailureKind {
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            400 => Self::BadRequest,
            401 | 403 => Self::Denied,
            402 => Self::BillingBlocked,
            408 => Self::RequestTimeout,
            409 => Self::Conflict,
            410 => Self::Gone,
            425 => Self::TooEarly,
            429 => Self::RateLimited,
            500.. => Self::ServerError,
            _ => Self::Rejected,
        }
    }
}

/// Who has to deal with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// An API call, within what its [`Policy`](crate::connection::policy::Policy) allows.
    Call,
    /// A poll for one result (`retrieve_future`).
    Poll,
    /// The long poll for completed samples (`retrieve_futures`).
    CompletionFeed,
    /// A whole sample, which is submitted again as a new request.
    Sample,
    /// A download by a link, which may be signed for a limited time.
    Download,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Try again after a delay.
    Retry,
    /// Try again, but only [`A_FEW_TIMES`] in a row.
    RetryAFewTimes,
    /// Wait while billing is blocked, for as long as that is allowed.
    WaitForBilling,
    /// Ask for a new link and try again once.
    RenewLink,
    /// Fail: the server no longer has the request.
    Lost,
    /// Fail.
    Fail,
}

/// Says what a caller does about a failure.
pub(crate) fn reaction(caller: Caller, failure: FailureKind) -> Reaction {
    use Caller::{Call, CompletionFeed, Download, Poll, Sample};
    use FailureKind as F;
    match (failure, caller) {
        (F::Transport | F::RequestTimeout | F::RateLimited | F::ServerError, _) => Reaction::Retry,
        (F::Conflict, Call | CompletionFeed | Sample) => Reaction::Retry,
        (F::TooEarly, Download) => Reaction::Retry,
        (F::BadRequest, Poll | CompletionFeed) => Reaction::RetryAFewTimes,
        (F::BillingBlocked, Call | Poll | CompletionFeed) => Reaction::WaitForBilling,
        // Servers of files answer an expired link in all of these ways.
        (F::BadRequest | F::Denied | F::Gone, Download) => Reaction::RenewLink,
        (F::Gone, Poll) => Reaction::Lost,
        (F::Conflict, Poll | Download)
        | (F::TooEarly, Call | Poll | CompletionFeed | Sample)
        | (F::BadRequest, Call | Sample)
        | (F::BillingBlocked, Sample | Download)
        | (F::Denied | F::Gone, Call | Poll | CompletionFeed | Sample)
        | (F::Rejected, _) => Reaction::Fail,
    }
}

/// Whether a status says that the caller has to change something.
pub(crate) fn is_user_error(status: u16) -> bool {
    (400..500).contains(&status) && status != 408
}

/// Delays that double from `first` up to `max`, with jitter so that clients do not return all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Backoff {
    /// The delay before the first retry.
    pub(crate) first: Duration,
    /// The longest delay, jitter included.
    pub(crate) max: Duration,
    /// By how much jitter may shorten a delay, as a share of it.
    pub(crate) shorten: f64,
    /// By how much jitter may lengthen a delay, as a share of it.
    pub(crate) lengthen: f64,
}

impl Backoff {
    /// Doubles from `first` to `max`, each delay up to a quarter shorter.
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            shorten: 0.25,
            lengthen: 0.0,
        }
    }

    /// Returns the delay before retry number `retries` (from 0). `random` is from 0, which gives the
    /// longest delay, to 1.
    pub(crate) fn delay(&self, retries: u32, random: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(2_u32.saturating_pow(retries.min(30)));
        let delay = doubled.min(self.max);
        let range = self.shorten + self.lengthen;
        let factor = 1.0 + self.lengthen - range * random.clamp(0.0, 1.0);
        // Settings that give no valid duration mean no jitter.
        Duration::try_from_secs_f64(delay.as_secs_f64() * factor)
            .unwrap_or(delay)
            .min(self.max)
    }
}

/// Reads how long the server wants to be left alone: milliseconds, seconds, or a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let milliseconds = || Some(text(header::RETRY_AFTER_MS)?.parse::<f64>().ok()? / 1000.0);
    let seconds = || text(header::RETRY_AFTER)?.parse::<f64>().ok();
    let date = || {
        let date = http_date(text(header::RETRY_AFTER)?)?;
        Some(date.duration_since(now).as_secs_f64())
    };
    let delay = milliseconds().or_else(seconds).or_else(date)?;
    let delay = Duration::try_from_secs_f64(delay).ok()?;
    (!delay.is_zero() && delay <= MAX_RETRY_AFTER).then_some(delay)
}

/// Reads a date in any of the three forms of HTTP. Its weekday says nothing that the date does not, so a wrong
/// one is no reason to come back too early.
fn http_date(text: &str) -> Option<Timestamp> {
    // `Sun, 06 Nov 1994 08:49:37 GMT`
    static CURRENT: DateTimeParser = DateTimeParser::new().relaxed_weekday(true);
    if let Ok(timestamp) = CURRENT.parse_timestamp(text) {
        return Some(timestamp);
    }
    // `Sunday, 06-Nov-94 08:49:37 GMT` and `Sun Nov  6 08:49:37 1994`
    let (_weekday, rest) = text.split_once([',', ' '])?;
    let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
    let date = DateTime::strptime("%d-%b-%y %H:%M:%S GMT", &rest)
        .or_else(|_| DateTime::strptime("%b %d %H:%M:%S %Y", &rest))
        .ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::policy::tests::{headers, now};

    #[test]
    fn each_caller_has_one_reaction_to_each_status() {
        use Reaction::{
            Fail, Lost, RenewLink as Renew, Retry, RetryAFewTimes as Few, WaitForBilling as Bill,
        };
        let callers = [
            Caller::Call,
            Caller::Poll,
            Caller::CompletionFeed,
            Caller::Sample,
            Caller::Download,
        ];
        let table = [
            // status, call, poll, completion feed, sample, download
            (400, [Fail, Few, Few, Fail, Renew]),
            (401, [Fail, Fail, Fail, Fail, Renew]),
            (402, [Bill, Bill, Bill, Fail, Fail]),
            (403, [Fail, Fail, Fail, Fail, Renew]),
            (404, [Fail, Fail, Fail, Fail, Fail]),
            (408, [Retry, Retry, Retry, Retry, Retry]),
            (409, [Retry, Fail, Retry, Retry, Fail]),
            (410, [Fail, Lost, Fail, Fail, Renew]),
            (422, [Fail, Fail, Fail, Fail, Fail]),
            (425, [Fail, Fail, Fail, Fail, Retry]),
            (429, [Retry, Retry, Retry, Retry, Retry]),
            (500, [Retry, Retry, Retry, Retry, Retry]),
            (503, [Retry, Retry, Retry, Retry, Retry]),
            (599, [Retry, Retry, Retry, Retry, Retry]),
        ];
        for (status, expected) in table {
            let found = callers.map(|caller| reaction(caller, FailureKind::of_status(status)));
            assert_eq!(found, expected, "status {status}");
        }
        for caller in callers {
            assert_eq!(
                reaction(caller, FailureKind::Transport),
                Retry,
                "{caller:?}"
            );
        }
    }

    #[test]
    fn retry_after_is_read_in_milliseconds_seconds_and_as_a_date() {
        let ms = |ms| Some(Duration::from_millis(ms));
        type Pairs<'a> = &'a [(&'static str, &'a str)];
        let cases: [(Pairs<'_>, Option<Duration>); 15] = [
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
            // A wrong weekday, and the two older forms.
            (
                &[("retry-after", "Mon, 02 Jan 2026 03:04:15 GMT")],
                ms(10_000),
            ),
            (
                &[("retry-after", "Friday, 02-Jan-26 03:04:15 GMT")],
                ms(10_000),
            ),
            (
                &[("retry-after", "Monday, 02-Jan-26 03:04:15 GMT")],
                ms(10_000),
            ),
            (&[("retry-after", "Fri Jan  2 03:04:15 2026")], ms(10_000)),
            (&[("retry-after", "Fri Jan 32 03:04:15 2026")], None),
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
    fn delays_double_and_jitter_stays_within_its_bounds() {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
        let delay = |retries, random| backoff.delay(retries, random).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 99].map(|n| delay(n, 0.0)),
            [500, 1000, 2000, 4000, 8000, 10_000, 10_000]
        );
        assert_eq!(delay(0, 1.0), 375);
        let both = Backoff {
            lengthen: 0.25,
            ..backoff
        };
        assert_eq!(both.delay(0, 0.0).as_millis(), 625);
        assert_eq!(both.delay(0, 1.0).as_millis(), 375);
        assert_eq!(
            both.delay(9, 0.0).as_millis(),
            10_000,
            "no more than the longest"
        );
    }
}
