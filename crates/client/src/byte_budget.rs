//! A budget of bytes that many tasks share.
//!
//! A taker waits only while the budget is overdrawn, then takes all it needs, even if that
//! overdraws it. So an item larger than the whole budget still gets through, one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct ByteBudget {
    left: AtomicI64,
    returned: Notify,
}

impl ByteBudget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        let left = AtomicI64::new(i64::try_from(bytes).unwrap_or(i64::MAX));
        Arc::new(Self {
            left,
            returned: Notify::new(),
        })
    }

    /// Waits until the budget is not overdrawn, then takes `bytes` from it.
    pub(crate) async fn take(self: &Arc<Self>, bytes: u64) -> Reserved {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / 2);
        loop {
            let returned = self.returned.notified();
            tokio::pin!(returned);
            returned.as_mut().enable();
            if self.try_take(bytes) {
                return Reserved {
                    budget: Arc::clone(self),
                    bytes,
                };
            }
            returned.await;
        }
    }

    fn try_take(&self, bytes: i64) -> bool {
        let take = |left: i64| (left >= 0).then(|| left.saturating_sub(bytes));
        self.left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
            .is_ok()
    }
}

/// Bytes taken from a budget. They go back when this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    budget: Arc<ByteBudget>,
    bytes: i64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::AcqRel);
        self.budget.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn one_large_item_gets_through_and_others_wait_for_it() {
        let budget = ByteBudget::new(10);
        let small = budget.take(4).now_or_never().expect("there is enough");
        let large = budget
            .take(1_000)
            .now_or_never()
            .expect("it is not overdrawn yet");
        let mut waiting = Box::pin(budget.take(1));
        assert!(
            (&mut waiting).now_or_never().is_none(),
            "it is overdrawn now"
        );
        drop(small);
        assert!((&mut waiting).now_or_never().is_none(), "and still is");
        drop(large);
        waiting.await;
    }
}
