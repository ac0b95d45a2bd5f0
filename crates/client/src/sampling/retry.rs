//! Retrying whole samples, and noticing when none gets through.

use crate::Error;
use crate::lock::lock;
use crate::retry::{Backoff, Caller, Reaction, reaction};
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How whole samples are retried: submitted again as new requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryConfig {
    /// How long no sample of this client may succeed before all of them fail. Default two hours.
    pub progress_timeout: Duration,
    /// The delay before the first retry; it doubles with each. Default half a second.
    pub delay_base: Duration,
    /// The longest delay. Default ten seconds.
    pub delay_max: Duration,
    /// How far the delay may stray to either side, as a share of it. Default 0.25.
    pub jitter: f64,
    /// Retries at all. Default true.
    pub enabled: bool,
    /// Gives up after `progress_timeout`. Default true, unless the server turns it off.
    pub stuck_detection: bool,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            progress_timeout: Duration::from_secs(7_200),
            delay_base: Duration::from_millis(500),
            delay_max: Duration::from_secs(10),
            jitter: 0.25,
            enabled: true,
            stuck_detection: true,
        }
    }
}

impl RetryConfig {
    /// Returns how long to wait before the next try; `random` is from 0 to 1.
    pub(crate) fn delay(&self, tries: u32, random: f64) -> Duration {
        let jitter = self.jitter.clamp(0.0, 1.0);
        let backoff = Backoff {
            first: self.delay_base,
            max: self.delay_max,
            shorten: jitter,
            lengthen: jitter,
        };
        backoff.delay(tries, 1.0 - random)
    }

    /// Returns whether a sample that failed like this is submitted again.
    pub(crate) fn retries(&self, error: &Error) -> bool {
        let is_lost = matches!(error, Error::PromiseLost { .. });
        let failure = error.failure_kind();
        let passes =
            failure.is_some_and(|failure| reaction(Caller::Sample, failure) == Reaction::Retry);
        self.enabled && (is_lost || passes)
    }
}

/// When a client's samples last got anywhere.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    last: Option<Instant>,
}

/// Counts a sample as under way for as long as it lives.
pub(crate) struct UnderWay<'a>(&'a Progress);

impl Progress {
    /// Takes note of a sample that starts. If none was under way, the clock starts over.
    pub(crate) fn start(&self) -> UnderWay<'_> {
        let mut state = self.lock();
        if state.under_way == 0 {
            state.last = Some(Instant::now());
        }
        state.under_way += 1;
        UnderWay(self)
    }

    /// Takes note of a success.
    pub(crate) fn made(&self) {
        self.lock().last = Some(Instant::now());
    }

    /// Runs a sample unless nothing has succeeded for `timeout`.
    pub(crate) async fn guard<T>(
        &self,
        timeout: Option<Duration>,
        sample: Pin<&mut impl Future<Output = Result<T, Error>>>,
    ) -> Result<T, Error> {
        let Some(after) = timeout else {
            return sample.await;
        };
        tokio::select! {
            biased;
            result = sample => result,
            () = self.stuck(after) => Err(Error::Stuck { after }),
        }
    }

    async fn stuck(&self, timeout: Duration) {
        loop {
            let last = self.lock().last.unwrap_or_else(Instant::now);
            let Some(deadline) = last.checked_add(timeout) else {
                return std::future::pending().await;
            };
            if deadline <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_within_their_jitter() {
        let config = RetryConfig::default();
        let ms = |tries, random| config.delay(tries, random).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|n| ms(n, 0.5)),
            [500, 1_000, 2_000, 4_000, 8_000, 10_000]
        );
        assert_eq!((ms(0, 0.0), ms(0, 1.0), ms(9, 1.0)), (375, 625, 10_000));
    }

    #[test]
    fn no_setting_makes_a_delay_panic() {
        let odd = RetryConfig {
            jitter: f64::NAN,
            ..RetryConfig::default()
        };
        assert_eq!(odd.delay(0, 0.5), Duration::from_millis(500));
        let endless = RetryConfig {
            delay_base: Duration::MAX,
            delay_max: Duration::MAX,
            ..RetryConfig::default()
        };
        assert_eq!(endless.delay(9, 1.0), Duration::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn samples_without_any_success_fail_together_and_a_success_buys_time() {
        let progress = Progress::default();
        let timeout = Duration::from_secs(100);
        let _first = progress.start();
        let forever = std::future::pending::<Result<(), Error>>;
        let start = Instant::now();
        let other_succeeds = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            progress.made();
        };
        let forever = std::pin::pin!(forever());
        let (stuck, ()) = tokio::join!(progress.guard(Some(timeout), forever), other_succeeds);
        assert!(matches!(stuck, Err(Error::Stuck { .. })));
        assert_eq!(start.elapsed().as_secs(), 160);
    }
}
