//! Something that waits until the test says "now".

use tokio::sync::watch;

/// A door that is closed until it is opened, and then stays open.
///
/// Clones are the same door.
#[derive(Clone, Debug)]
pub struct Gate {
    open: watch::Sender<bool>,
}

impl Gate {
    /// Makes a closed gate.
    pub fn closed() -> Self {
        Self {
            open: watch::Sender::new(false),
        }
    }

    /// Lets through everybody who waits or will come.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Returns whether the gate is open.
    pub fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Waits until the gate is open.
    pub async fn passed(&self) {
        let mut changes = self.open.subscribe();
        changes
            .wait_for(|open| *open)
            .await
            .expect("`self` holds the sender");
    }
}
