//! Puts a model's operations in the order of their sequence ids.
//!
//! Clients send the chunks of one pass at the same time, the first one last, so operations arrive
//! in any order. [`Order`] holds those that came early and releases them when the missing ones
//! arrive. It knows nothing of time: its owner decides when to give up on a gap.
//!
//! Invariant: operations leave in strictly rising order, each at most once.

use std::collections::BTreeMap;

/// Whether a sequence id can still be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the next one.
    Next,
    /// Others come first.
    Later,
    /// Its turn has passed.
    Past,
}

/// The operations of one model that wait for their turn.
#[derive(Debug)]
pub(crate) struct Order<J> {
    next: i64,
    /// `None` is an operation that came and has nothing to run.
    held: BTreeMap<i64, Option<J>>,
}

impl<J> Order<J> {
    /// Makes an order that waits for this sequence id first.
    pub(crate) fn new(next: i64) -> Self {
        Self {
            next,
            held: BTreeMap::new(),
        }
    }

    /// Returns the sequence id that everything waits for.
    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// Returns the first sequence id that no operation has taken, after all that have come.
    pub(crate) fn end(&self) -> i64 {
        self.held
            .last_key_value()
            .map_or(self.next, |(last, _)| last.saturating_add(1))
    }

    /// Returns whether operations wait for one that has not come.
    pub(crate) fn has_gap(&self) -> bool {
        !self.held.is_empty()
    }

    /// Tells where a sequence id would go.
    pub(crate) fn place(&self, seq_id: i64) -> Place {
        match seq_id.cmp(&self.next) {
            std::cmp::Ordering::Less => Place::Past,
            std::cmp::Ordering::Equal => Place::Next,
            std::cmp::Ordering::Greater => Place::Later,
        }
    }

    /// Takes an operation, or the news that there is nothing to run under its sequence id, and returns
    /// what may run now, in order.
    pub(crate) fn insert(&mut self, seq_id: i64, operation: Option<J>) -> Vec<J> {
        self.held.insert(seq_id, operation);
        let mut ready = Vec::new();
        while let Some(operation) = self.held.remove(&self.next) {
            self.next = self.next.saturating_add(1);
            ready.extend(operation);
        }
        ready
    }

    /// Stops waiting for the missing sequence ids: returns the operations that waited, which must not
    /// run without their predecessors. Later sequence ids go on after them.
    pub(crate) fn abandon(&mut self) -> Vec<J> {
        self.next = self.end();
        std::mem::take(&mut self.held)
            .into_values()
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_operations_wait_and_leave_in_order() {
        let mut order = Order::new(1);
        assert!(order.insert(3, Some('c')).is_empty());
        assert!(order.insert(2, Some('b')).is_empty());
        assert!(order.has_gap());
        assert_eq!(order.insert(1, Some('a')), ['a', 'b', 'c']);
        assert!(!order.has_gap());
        assert_eq!((order.next(), order.end()), (4, 4));
    }

    #[test]
    fn a_number_with_nothing_to_run_still_has_its_turn() {
        let mut order = Order::new(1);
        assert!(order.insert(2, None).is_empty());
        assert!(order.insert(3, Some('c')).is_empty());
        assert_eq!(order.insert(1, None), ['c']);
    }

    #[test]
    fn an_abandoned_gap_gives_up_what_waited_and_lets_later_ones_run() {
        let mut order = Order::new(1);
        order.insert(2, Some('b'));
        order.insert(4, Some('d'));
        assert_eq!(order.end(), 5);
        assert_eq!(order.abandon(), ['b', 'd']);
        assert_eq!(order.place(1), Place::Past);
        assert_eq!(order.place(5), Place::Next);
        assert_eq!(order.place(6), Place::Later);
        assert_eq!(order.insert(5, Some('e')), ['e']);
    }
}
