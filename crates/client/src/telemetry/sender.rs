//! The queue of events, and the task that empties it.

use crate::Error;
use crate::lock::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tinkrs_types::protocol::TelemetryEvent;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// How many events are sent together.
pub(super) const BATCH: usize = 100;
/// How many events wait at most.
pub(super) const QUEUE: usize = 10_000;
/// How long events wait at most, when sending works.
pub(super) const FLUSH_EVERY: Duration = Duration::from_secs(10);
/// How long to wait before a batch is sent again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long closing waits.
pub(super) const DRAIN: Duration = Duration::from_secs(30);

/// The near end of the queue. Dropping it ends the task, after a last try to send.
pub(super) struct Sender {
    shared: Arc<Shared>,
    started: Instant,
    task: AbortHandle,
    /// Closed when the task has ended.
    ended: watch::Receiver<()>,
}

struct Shared {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    phase: Phase,
    queue: VecDeque<TelemetryEvent>,
    next_index: u64,
    /// How many events found the queue full since that was last reported.
    dropped: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// No more events are taken; those that are queued are sent, however long that takes.
    Draining,
    /// No more events are taken; those that are queued are sent if it works at the first try.
    Abandoned,
    /// The task is gone, or about to be.
    Over,
}

impl Sender {
    pub(super) fn start<S, F>(send: S) -> Self
    where
        S: Fn(Vec<TelemetryEvent>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Notify::new(),
        });
        let (alive, ended) = watch::channel(());
        let in_task = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            in_task.run(send).await;
            in_task.end();
            drop(alive);
        });
        Self {
            shared,
            started: Instant::now(),
            task: task.abort_handle(),
            ended,
        }
    }

    /// Queues the event that `make` makes from its number, unless the queue is full.
    pub(super) fn push(&self, make: impl FnOnce(u64) -> TelemetryEvent) {
        let mut state = self.shared.state();
        if state.phase != Phase::Open {
            return;
        }
        if state.queue.len() >= QUEUE {
            if state.dropped == 0 {
                tracing::warn!("the queue of telemetry events is full: events are dropped");
            }
            state.dropped += 1;
            return;
        }
        let event = make(state.next_index);
        state.next_index += 1;
        state.queue.push_back(event);
    }

    pub(super) fn flush(&self) {
        self.shared.wake.notify_one();
    }

    pub(super) async fn close(&self) {
        self.shared.leave(Phase::Draining);
        let mut ended = self.ended.clone();
        // The channel carries nothing: the only change to wait for is its end.
        let drained = timeout(DRAIN, async { while ended.changed().await.is_ok() {} }).await;
        if drained.is_err() {
            self.task.abort();
            let unsent = self.shared.end();
            tracing::warn!(unsent, "gave up sending telemetry events");
        }
    }

    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.leave(Phase::Abandoned);
    }
}

impl Shared {
    async fn run<S, F>(&self, send: S)
    where
        S: Fn(Vec<TelemetryEvent>) -> F,
        F: Future<Output = Result<(), Error>>,
    {
        loop {
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(FLUSH_EVERY) => {}
            }
            // Read before sending: what is queued until then is sent below.
            let phase = self.state().phase;
            self.report_dropped();
            while let Some(batch) = self.next_batch() {
                if !self.deliver(batch, &send).await {
                    return;
                }
            }
            if phase != Phase::Open {
                return;
            }
        }
    }

    /// Sends a batch until it arrives. Returns whether there is any point in sending more.
    async fn deliver<S, F>(&self, batch: Vec<TelemetryEvent>, send: &S) -> bool
    where
        S: Fn(Vec<TelemetryEvent>) -> F,
        F: Future<Output = Result<(), Error>>,
    {
        loop {
            match send(batch.clone()).await {
                Ok(()) => return true,
                Err(error) if error.is_retryable() => {
                    if self.state().phase == Phase::Abandoned {
                        return false;
                    }
                    tracing::debug!(%error, "could not send telemetry events yet");
                    sleep(RETRY_AFTER).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "the server takes no telemetry: no more is sent");
                    return false;
                }
            }
        }
    }

    fn next_batch(&self) -> Option<Vec<TelemetryEvent>> {
        let mut state = self.state();
        let count = state.queue.len().min(BATCH);
        (count > 0).then(|| state.queue.drain(..count).collect())
    }

    fn report_dropped(&self) {
        let dropped = std::mem::take(&mut self.state().dropped);
        if dropped > 0 {
            tracing::warn!(dropped, "telemetry events were dropped");
        }
    }

    /// Leaves the open phase, once, and wakes the task.
    fn leave(&self, phase: Phase) {
        let mut state = self.state();
        // The caller of `close` waits for the events; dropping the handle meanwhile changes nothing.
        if state.phase == Phase::Open {
            state.phase = phase;
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Takes no more events, and returns how many were left.
    fn end(&self) -> usize {
        let mut state = self.state();
        state.phase = Phase::Over;
        std::mem::take(&mut state.queue).len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
