//! Ctrl-C, which is remembered until it is asked for.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::ctrl_c::CtrlC;

/// What the user interrupts, one thing at a time: an answer, or the wait for a line.
///
/// Listening anew for each of them would miss a Ctrl-C that falls in between.
#[derive(Clone, Debug)]
pub(super) struct Interrupts(Arc<Notify>);

impl Interrupts {
    /// Starts to listen. From then on Ctrl-C ends the program only if it is asked for.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let mut ctrl_c = CtrlC::listen()?;
        let pressed = Arc::new(Notify::new());
        let interrupts = Self(Arc::clone(&pressed));
        tokio::spawn(async move {
            loop {
                ctrl_c.pressed().await;
                pressed.notify_one();
            }
        });
        Ok(interrupts)
    }

    /// Waits for Ctrl-C, unless it was pressed since the last one that was asked for.
    pub(super) async fn next(&self) {
        self.0.notified().await;
    }
}
