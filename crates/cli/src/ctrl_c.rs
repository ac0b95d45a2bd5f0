//! Ctrl-C, listened for from the moment at which this is made.
//!
//! `tokio::signal::ctrl_c` begins to listen when it is first polled: until then Ctrl-C ends the process.

use anyhow::Context;

/// Every Ctrl-C since it was made.
#[derive(Debug)]
pub(crate) struct CtrlC(
    #[cfg(unix)] tokio::signal::unix::Signal,
    #[cfg(windows)] tokio::signal::windows::CtrlC,
);

impl CtrlC {
    /// Begins to listen.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        #[cfg(unix)]
        let signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt());
        #[cfg(windows)]
        let signals = tokio::signal::windows::ctrl_c();
        signals.map(Self).context("could not listen for Ctrl-C")
    }

    /// Waits until it is pressed, unless it was since the last one that was waited for.
    pub(crate) async fn pressed(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}
