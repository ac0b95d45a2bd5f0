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
    pub async fn advance(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(50);
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(STEP);
            tokio::time::advance(step).await;
            left -= step;
        }
    }

    /// Moves the clock until something has happened, and returns by how much.
    ///
    /// Between steps it lets all tasks run that can, and looks at the sockets.
    pub async fn advance_until<T>(&self, event: impl Future<Output = T>) -> T {
        const STEP: Duration = Duration::from_millis(20);
        let mut event = std::pin::pin!(event);
        loop {
            for _ in 0..64 {
                tokio::select! {
                    biased;
                    output = &mut event => return output,
                    () = tokio::task::yield_now() => {}
                }
            }
            tokio::time::advance(STEP).await;
        }
    }
}
