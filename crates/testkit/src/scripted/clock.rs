//! A clock that stands still.

use std::sync::mpsc;
use std::time::Duration;

/// Stops tokio's clock on this runtime until it is dropped; only the test moves it.
///
/// Pausing alone is not enough: a paused clock jumps to the next timer when all tasks wait,
/// even if they wait for sockets. It does not while a blocking task runs, so one does.
#[derive(Debug)]
pub struct ManualClock {
    _running: mpsc::Sender<()>,
}

impl ManualClock {
    /// Stops the clock. The runtime must be single-threaded.
    pub fn start() -> Self {
        let (running, ended) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || ended.recv());
        tokio::time::pause();
        Self { _running: running }
    }

    /// Moves the clock, in steps small enough that every timer fires in its turn.
    ///
    /// Timers that end within that time have fired. They may end a millisecond late, since
    /// tokio rounds up, so that is added.
    pub async fn advance(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(50);
        let mut left = time + Duration::from_millis(1);
        while !left.is_zero() {
            let step = left.min(STEP);
            tokio::time::advance(step).await;
            left -= step;
        }
    }

    /// Moves the clock until something has happened.
    ///
    /// Between steps it lets all tasks run that can, and looks at the sockets. The steps are of
    /// 20 ms, so that times can be measured.
    pub async fn advance_until<T>(&self, event: impl Future<Output = T>) -> T {
        self.step_until(Duration::from_millis(20), event).await
    }

    /// Moves the clock until something has happened, a second at a time: for events that are
    /// minutes away.
    pub async fn leap_until<T>(&self, event: impl Future<Output = T>) -> T {
        self.step_until(Duration::from_secs(1), event).await
    }

    async fn step_until<T>(&self, step: Duration, event: impl Future<Output = T>) -> T {
        let mut event = std::pin::pin!(event);
        loop {
            for _ in 0..64 {
                tokio::select! {
                    biased;
                    output = &mut event => return output,
                    () = tokio::task::yield_now() => {}
                }
            }
            tokio::time::advance(step).await;
        }
    }
}
