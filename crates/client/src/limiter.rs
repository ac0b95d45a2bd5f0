//! Backpressure, shared by everything that uses one account of one server.
//!
//! There is one [`Limiter`] for each pair of base URL and credential in the process, however
//! many clients race to be the first: a server that says "slow down" to one of them means all.
//! Three things hold submissions back: a 429, a billing block, and a paused queue state that a
//! poll has seen. For ten seconds after such a pause, submissions go out ten at a time and each
//! counts twenty times its bytes.
//!
//! The pause is a single atomic number, so that looking at it costs nothing when there is none.

use crate::byte_budget::{ByteBudget, Taken};
use crate::connection::stats::Counters;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

const SUBMISSIONS: usize = 400;
const THROTTLED_SUBMISSIONS: usize = 10;
const THROTTLED_BYTE_FACTOR: u64 = 20;
const RECENT: Duration = Duration::from_secs(10);
/// How long a waiting submission sleeps before it looks again: the pause may have grown.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A prompt above this size makes a 429 cost more.
const LARGE_PROMPT_BYTES: u64 = 131_072;
const PAUSE_AFTER_SMALL: Duration = Duration::from_secs(1);
const PAUSE_AFTER_LARGE: Duration = Duration::from_secs(5);
/// A paused queue is looked at again with every poll, which renews this.
const PAUSE_FOR_QUEUE: Duration = Duration::from_secs(5);

/// Who shares backpressure with whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackpressureScope {
    /// All clients of the process with the same base URL and credential.
    ///
    /// This is the default: the limits that a server enforces are the account's, so clients that
    /// ignored each other's pauses would only be refused more often.
    #[default]
    Account,
    /// This client alone. Choose it if one noisy workload must not slow others down.
    Client,
}

/// Which limiter: base URL and a digest of the credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LimiterKey {
    pub(crate) base_url: String,
    pub(crate) credential_digest: [u8; 32],
}

#[derive(Debug)]
pub(crate) struct Limiter {
    /// Milliseconds since `epoch`; 0 if there never was a pause.
    paused_until_ms: AtomicU64,
    epoch: Instant,
    submissions: Arc<Semaphore>,
    throttled: Arc<Semaphore>,
    bytes: Arc<ByteBudget>,
}

/// The right to submit one request. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _submission: OwnedSemaphorePermit,
    _throttled: Option<OwnedSemaphorePermit>,
    _bytes: Taken,
}

impl Limiter {
    pub(crate) fn new(byte_budget: u64) -> Arc<Self> {
        Arc::new(Self {
            paused_until_ms: AtomicU64::new(0),
            epoch: Instant::now(),
            submissions: Arc::new(Semaphore::new(SUBMISSIONS)),
            throttled: Arc::new(Semaphore::new(THROTTLED_SUBMISSIONS)),
            bytes: ByteBudget::new(byte_budget),
        })
    }

    /// Returns the one limiter of an account, making it if nobody has yet.
    ///
    /// Looking and making happen under one lock, so two racing clients never get two.
    pub(crate) fn shared(key: LimiterKey, byte_budget: u64) -> Arc<Self> {
        static LIMITERS: LazyLock<Mutex<HashMap<LimiterKey, Weak<Limiter>>>> =
            LazyLock::new(Mutex::default);
        let mut limiters = LIMITERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = limiters.get(&key).and_then(Weak::upgrade) {
            return limiter;
        }
        limiters.retain(|_, limiter| limiter.strong_count() > 0);
        let limiter = Self::new(byte_budget);
        limiters.insert(key, Arc::downgrade(&limiter));
        limiter
    }

    /// Waits for a turn to submit a sample of this estimated size.
    pub(crate) async fn admit(&self, size_bytes: u64) -> Permit {
        let closed = "the semaphores are never closed";
        let submission = Arc::clone(&self.submissions)
            .acquire_owned()
            .await
            .expect(closed);
        let throttled = if self.is_throttled() {
            Some(
                Arc::clone(&self.throttled)
                    .acquire_owned()
                    .await
                    .expect(closed),
            )
        } else {
            None
        };
        let factor = if self.is_throttled() {
            THROTTLED_BYTE_FACTOR
        } else {
            1
        };
        let bytes = self.bytes.take(size_bytes.saturating_mul(factor)).await;
        Permit {
            _submission: submission,
            _throttled: throttled,
            _bytes: bytes,
        }
    }

    /// Waits until nothing holds submissions back.
    pub(crate) async fn wait_while_paused(&self, counters: &Counters) {
        while let Some(left) = self.pause_left() {
            let nap = left.min(LOOK_EVERY);
            tokio::time::sleep(nap).await;
            counters
                .paused_ms
                .fetch_add(nap.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Takes note of a 429 or a billing block that a submission of this size met.
    pub(crate) fn refused(&self, size_bytes: u64) {
        let large = size_bytes > LARGE_PROMPT_BYTES;
        self.pause_for(if large {
            PAUSE_AFTER_LARGE
        } else {
            PAUSE_AFTER_SMALL
        });
    }

    /// Takes note of a paused queue that a poll has seen.
    pub(crate) fn queue_paused(&self) {
        self.pause_for(PAUSE_FOR_QUEUE);
    }

    fn pause_for(&self, pause: Duration) {
        let until = self.epoch.elapsed() + pause;
        self.paused_until_ms
            .fetch_max(until.as_millis() as u64, Ordering::AcqRel);
    }

    fn pause_left(&self) -> Option<Duration> {
        let until = self.paused_until_ms.load(Ordering::Acquire);
        if until == 0 {
            return None;
        }
        Duration::from_millis(until)
            .checked_sub(self.epoch.elapsed())
            .filter(|left| !left.is_zero())
    }

    fn is_throttled(&self) -> bool {
        let until = self.paused_until_ms.load(Ordering::Acquire);
        until != 0 && self.epoch.elapsed() < Duration::from_millis(until) + RECENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn key(url: &str, digest: u8) -> LimiterKey {
        LimiterKey {
            base_url: url.to_owned(),
            credential_digest: [digest; 32],
        }
    }

    #[test]
    fn limiters_made_in_a_race_are_one() {
        let barrier = std::sync::Barrier::new(64);
        let made: Vec<Arc<Limiter>> = std::thread::scope(|scope| {
            let race = || {
                barrier.wait();
                Limiter::shared(key("http://race", 1), 10)
            };
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(race)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(made.iter().all(|limiter| Arc::ptr_eq(limiter, &made[0])));
        let other = Limiter::shared(key("http://race", 2), 10);
        assert!(
            !Arc::ptr_eq(&other, &made[0]),
            "another credential has another limiter"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_back_and_then_throttles() {
        let limiter = Limiter::new(1_000);
        let counters = Counters::default();
        assert!(
            limiter
                .wait_while_paused(&counters)
                .now_or_never()
                .is_some()
        );

        limiter.refused(10);
        let start = Instant::now();
        limiter.wait_while_paused(&counters).await;
        assert!(start.elapsed() >= PAUSE_AFTER_SMALL);
        assert!(counters.snapshot().paused >= PAUSE_AFTER_SMALL);

        let mut permits = Vec::new();
        for _ in 0..THROTTLED_SUBMISSIONS {
            permits.push(limiter.admit(0).now_or_never().expect("ten may go"));
        }
        assert!(
            limiter.admit(0).now_or_never().is_none(),
            "the eleventh waits"
        );
        tokio::time::advance(RECENT).await;
        assert!(
            limiter.admit(0).now_or_never().is_some(),
            "the pause is long ago"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_never_shortened_by_a_shorter_one() {
        let limiter = Limiter::new(1_000);
        limiter.refused(LARGE_PROMPT_BYTES + 1);
        limiter.refused(1);
        let start = Instant::now();
        limiter.wait_while_paused(&Counters::default()).await;
        assert!(start.elapsed() >= PAUSE_AFTER_LARGE);
    }
}
