//! Counters that a user can read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What a client has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// HTTP calls under way.
    pub in_flight: u64,
    /// HTTP calls made, retries included.
    pub calls: u64,
    /// Retries among them.
    pub retries: u64,
    /// Bytes of request bodies sent.
    pub bytes_sent: u64,
    /// Bytes of response bodies received.
    pub bytes_received: u64,
    /// How long submissions were held back by the server, summed over all of them.
    pub paused: Duration,
}

impl Stats {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight + other.in_flight,
            calls: self.calls + other.calls,
            retries: self.retries + other.retries,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            paused: self.paused + other.paused,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) in_flight: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) paused_ms: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: usize) {
        counter.fetch_add(amount as u64, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        Stats {
            in_flight: self.in_flight.load(Relaxed),
            calls: self.calls.load(Relaxed),
            retries: self.retries.load(Relaxed),
            bytes_sent: self.bytes_sent.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
            paused: Duration::from_millis(self.paused_ms.load(Relaxed)),
        }
    }
}

/// Counts a call as under way for as long as it lives.
pub(crate) struct InFlight<'a>(&'a Counters);

impl<'a> InFlight<'a> {
    pub(crate) fn new(counters: &'a Counters) -> Self {
        counters.in_flight.fetch_add(1, Relaxed);
        counters.calls.fetch_add(1, Relaxed);
        Self(counters)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
