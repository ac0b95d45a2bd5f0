//! Backpressure, shared by everything that uses one account of one server.
//!
//! There is one [`Limiter`] for each pair of base URL and credential in the process, however
//! many clients race to be the first: a server that says "slow down" to one of them means all.
//! Three things hold samples back: a 429, a billing block, and a paused queue state that a
//! poll has seen. Training is not held back: it has an order to keep, and its own retries. For ten seconds after such a pause, submissions go out ten at a time and each
//! counts twenty times its bytes.
//!
//! A paused queue is seen again with every poll of everything that waits in it, so it would
//! renew its pause for as long as it lasts, and hold back what has nothing to do with it. The
//! pause therefore ends when a poll finds a queue active, and after a minute in any case: the
//! server can still say no to what then goes out.
//!
//! Pauses are atomic numbers, so that looking at them costs nothing when there are none.

use crate::byte_budget::{ByteBudget, Reserved};
use crate::connection::stats::Counters;
use crate::lock::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
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
/// How long such polls may renew it.
const MAX_PAUSE_FOR_QUEUE: Duration = Duration::from_secs(60);

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
    queue: QueuePause,
    epoch: Instant,
    submissions: Arc<Semaphore>,
    throttled: Arc<Semaphore>,
    bytes: Arc<ByteBudget>,
}

/// The pause that paused queues ask for, in milliseconds since the limiter's epoch; 0 for none.
#[derive(Debug, Default)]
struct QueuePause {
    until_ms: AtomicU64,
    /// When a queue was first found paused, and last.
    since_ms: AtomicU64,
    seen_ms: AtomicU64,
}

impl QueuePause {
    /// Takes note that a queue is paused.
    fn renew(&self, now: Duration) {
        // 0 means never, and an epoch is never that exact.
        let now_ms = now.as_millis().max(1) as u64;
        let seen_ms = self.seen_ms.swap(now_ms, Ordering::AcqRel);
        // Those who stop seeing it do not say so: a while without news is the end of it, too.
        let stale_ms = MAX_PAUSE_FOR_QUEUE.as_millis() as u64;
        if seen_ms == 0 || now_ms.saturating_sub(seen_ms) > stale_ms {
            self.since_ms.store(now_ms, Ordering::Release);
        }
        let end_ms = self.since_ms.load(Ordering::Acquire) + stale_ms;
        let until_ms = (now_ms + PAUSE_FOR_QUEUE.as_millis() as u64).min(end_ms);
        self.until_ms.fetch_max(until_ms, Ordering::AcqRel);
    }

    /// Takes note that a queue is active.
    fn end(&self) {
        if self.seen_ms.load(Ordering::Relaxed) != 0 {
            self.seen_ms.store(0, Ordering::Release);
            self.until_ms.store(0, Ordering::Release);
        }
    }
}

/// The right to submit one request. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _submission: OwnedSemaphorePermit,
    _throttled: Option<OwnedSemaphorePermit>,
    _bytes: Reserved,
}

impl Limiter {
    pub(crate) fn new(byte_budget: u64) -> Arc<Self> {
        Arc::new(Self {
            paused_until_ms: AtomicU64::new(0),
            queue: QueuePause::default(),
            epoch: Instant::now(),
            submissions: Arc::new(Semaphore::new(SUBMISSIONS)),
            throttled: Arc::new(Semaphore::new(THROTTLED_SUBMISSIONS)),
            bytes: ByteBudget::new(byte_budget),
        })
    }

    /// Returns the one limiter of an account, making it if there is none.
    ///
    /// Looking and making happen under one lock, so two racing clients never get two.
    pub(crate) fn shared(key: LimiterKey, byte_budget: u64) -> Arc<Self> {
        static LIMITERS: LazyLock<Mutex<HashMap<LimiterKey, Weak<Limiter>>>> =
            LazyLock::new(Mutex::default);
        let mut limiters = lock(&LIMITERS);
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
        self.queue.renew(self.epoch.elapsed());
    }

    /// Takes note of a queue that a poll has found active, or a result in it.
    pub(crate) fn queue_active(&self) {
        self.queue.end();
    }

    fn pause_for(&self, pause: Duration) {
        let until = self.epoch.elapsed() + pause;
        self.paused_until_ms
            .fetch_max(until.as_millis() as u64, Ordering::AcqRel);
    }

    fn pause_left(&self) -> Option<Duration> {
        self.paused_until()?
            .checked_sub(self.epoch.elapsed())
            .filter(|left| !left.is_zero())
    }

    fn is_throttled(&self) -> bool {
        let until = self.paused_until();
        until.is_some_and(|until| self.epoch.elapsed() < until + RECENT)
    }

    /// Returns when the last pause ends or ended, since the epoch.
    fn paused_until(&self) -> Option<Duration> {
        let refused = self.paused_until_ms.load(Ordering::Acquire);
        let until = refused.max(self.queue.until_ms.load(Ordering::Acquire));
        (until != 0).then(|| Duration::from_millis(until))
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

    #[tokio::test(start_paused = true)]
    async fn a_paused_queue_holds_back_for_a_minute_at_most() {
        let limiter = Limiter::new(1_000);
        let start = Instant::now();
        let polls = async {
            loop {
                limiter.queue_paused();
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let counters = Counters::default();
        limiter.queue_paused();
        tokio::select! {
            () = limiter.wait_while_paused(&counters) => {}
            () = polls => {}
        }
        assert_eq!(start.elapsed().as_secs(), MAX_PAUSE_FOR_QUEUE.as_secs());
        limiter.queue_paused();
        assert!(limiter.pause_left().is_none(), "it is the same pause");
        tokio::time::advance(MAX_PAUSE_FOR_QUEUE + PAUSE_FOR_QUEUE).await;
        limiter.queue_paused();
        assert!(limiter.pause_left().is_some(), "it is another");
    }

    #[tokio::test(start_paused = true)]
    async fn an_active_queue_ends_the_pause_of_queues_and_no_other() {
        let limiter = Limiter::new(1_000);
        tokio::time::advance(Duration::from_secs(1)).await;
        limiter.queue_paused();
        assert_eq!(limiter.pause_left(), Some(PAUSE_FOR_QUEUE));
        limiter.queue_active();
        assert_eq!(limiter.pause_left(), None);
        limiter.refused(1);
        limiter.queue_active();
        assert_eq!(limiter.pause_left(), Some(PAUSE_AFTER_SMALL));
    }
}
