//! How long a connection may stand still.
//!
//! It ends when nothing comes for a while, and when what came is too little for all the time that was spent on
//! waiting: a slow line may take its time, a client that sends a byte now and then may not.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

/// Each this many bytes give another second.
const BYTES_PER_SECOND: u64 = 1024;

/// The other side has kept us waiting for too long.
#[derive(Debug, thiserror::Error)]
#[error("timed out: the other side is too slow")]
pub(crate) struct TooSlow;

impl From<TooSlow> for io::Error {
    fn from(error: TooSlow) -> Self {
        Self::new(io::ErrorKind::TimedOut, error)
    }
}

/// Time that can be spent on waiting: some at a time, and in all as much as what came is worth.
#[derive(Debug)]
pub(super) struct StallTimeout {
    timeout: Duration,
    bytes: u64,
    waited: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl StallTimeout {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            bytes: 0,
            waited: Duration::ZERO,
            waiting: None,
        }
    }

    /// Notes that the other side has sent or taken something.
    pub(super) fn progressed(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
    }

    /// To be called whenever there is nothing to do but wait. It is ready when that took too long.
    pub(super) fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<TooSlow> {
        let allowed = self.timeout + Duration::from_secs(self.bytes / BYTES_PER_SECOND);
        let left = allowed.saturating_sub(self.waited).min(self.timeout);
        let (_, sleep) = self.waiting.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(tokio::time::sleep_until(now + left)))
        });
        sleep.as_mut().poll(cx).map(|()| TooSlow)
    }
}

/// The body of a request, which has to come at some pace while somebody waits for it.
#[derive(Debug)]
pub(super) struct PacedBody {
    body: Incoming,
    stall_timeout: StallTimeout,
    is_read: Arc<AtomicBool>,
}

impl PacedBody {
    /// `is_read` tells whether all of it was read.
    pub(super) fn new(
        body: Incoming,
        stall_timeout: StallTimeout,
        is_read: Arc<AtomicBool>,
    ) -> Self {
        is_read.store(body.is_end_stream(), Ordering::Relaxed);
        Self {
            body,
            stall_timeout,
            is_read,
        }
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let data = frame
                    .as_ref()
                    .and_then(|frame| frame.as_ref().ok()?.data_ref());
                let bytes = data.map_or(0, Bytes::len);
                self.stall_timeout.progressed(bytes);
                if frame.is_none() || self.body.is_end_stream() {
                    self.is_read.store(true, Ordering::Relaxed);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let late = std::task::ready!(self.stall_timeout.poll_waiting(cx));
                Poll::Ready(Some(Err(late.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// Waits with somebody who sends `bytes` every `pause`, and returns for how many seconds that went well.
    async fn endured(timeout: u64, pause: Duration, bytes: usize) -> u64 {
        let mut stall_timeout = StallTimeout::new(Duration::from_secs(timeout));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1000) {
            let waiting = poll_fn(|cx| stall_timeout.poll_waiting(cx));
            if tokio::time::timeout(pause, waiting).await.is_ok() {
                break;
            }
            stall_timeout.progressed(bytes);
        }
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_and_so_does_a_byte_now_and_then_but_not_a_slow_line() {
        let second = Duration::from_secs(1);
        assert_eq!(endured(30, 5000 * second, 0).await, 30);
        let drip = endured(30, 10 * second, 1).await;
        assert!((30..=31).contains(&drip), "{drip}");
        assert!(endured(30, second, 2048).await >= 1000);
        // What came before a silence does not make it shorter or longer.
        assert_eq!(endured(30, 40 * second, 100_000).await, 30);
    }
}
