//! Which connections there are, and which of them has to go for a new one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How many connections are accepted beyond the limit, for health checks.
const RESERVED: usize = 64;

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It owes the head of a request, since it was opened or since the first byte of one.
    Waiting(Instant),
    /// A request is under way.
    Busy,
    /// It has had its response, and may send another request.
    Idle(Instant),
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) id: u64,
    /// Whether it is beyond the limit, and so for health checks only.
    pub(super) is_reserved: bool,
    /// Told when it has to make room for another one.
    pub(super) end: Arc<Notify>,
}

/// In which order connections leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Idle,
    Waiting,
    /// Beyond the limit: these leave for each other only.
    Reserved,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    is_reserved: bool,
    end: Arc<Notify>,
}

impl Entry {
    fn rank(&self) -> Option<(Rank, Instant)> {
        let (rank, since) = match self.phase {
            Phase::Busy => return None,
            Phase::Waiting(since) => (Rank::Waiting, since),
            Phase::Idle(since) => (Rank::Idle, since),
        };
        let rank = if self.is_reserved {
            Rank::Reserved
        } else {
            rank
        };
        Some((rank, since))
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct Table {
    limit: usize,
    next: u64,
    entries: HashMap<u64, Entry>,
    reserved: usize,
    /// Those that may leave, in the order in which they do.
    leaving: BTreeSet<(Rank, Instant, u64)>,
}

impl Table {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            next: 0,
            entries: HashMap::new(),
            reserved: 0,
            leaving: BTreeSet::new(),
        }
    }

    /// Finds a place for a new connection, if need be that of another one.
    pub(super) fn admit(&mut self, now: Instant) -> Option<Admission> {
        let is_full = self.entries.len() - self.reserved >= self.limit;
        let is_reserved = is_full && !self.evict();
        if is_reserved && self.reserved >= RESERVED && !self.evict_first(Rank::Reserved) {
            return None;
        }
        let (id, end) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.reserved += usize::from(is_reserved);
        let entry = Entry {
            phase: Phase::Waiting(now),
            is_reserved,
            end: Arc::clone(&end),
        };
        self.entries.insert(id, entry);
        self.note(id, Phase::Waiting(now));
        Some(Admission {
            id,
            is_reserved,
            end,
        })
    }

    /// Ends the connection within the limit that has done nothing for longest, if there is one.
    pub(super) fn evict(&mut self) -> bool {
        self.evict_first(Rank::Waiting)
    }

    fn evict_first(&mut self, last: Rank) -> bool {
        let first = self.leaving.first().copied();
        let Some((_, _, id)) = first.filter(|(rank, ..)| *rank <= last) else {
            return false;
        };
        if let Some(entry) = self.entries.get(&id) {
            entry.end.notify_one();
        }
        self.remove(id);
        true
    }

    /// Notes what a connection is at now.
    pub(super) fn note(&mut self, id: u64, phase: Phase) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if let Some((rank, since)) = entry.rank() {
            self.leaving.remove(&(rank, since, id));
        }
        entry.phase = phase;
        if let Some((rank, since)) = entry.rank() {
            self.leaving.insert((rank, since, id));
        }
    }

    /// Returns what a connection is at. One that had to leave is as good as busy: nothing is expected of it.
    pub(super) fn phase(&self, id: u64) -> Phase {
        self.entries
            .get(&id)
            .map_or(Phase::Busy, |entry| entry.phase)
    }

    pub(super) fn remove(&mut self, id: u64) {
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        self.reserved -= usize::from(entry.is_reserved);
        if let Some((rank, since)) = entry.rank() {
            self.leaving.remove(&(rank, since, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A full table of three, and the moment after.
    fn full() -> (Table, Instant) {
        let (mut table, start) = (Table::new(3), Instant::now());
        for second in 0..3 {
            let admission = table.admit(start + Duration::from_secs(second)).unwrap();
            assert!(!admission.is_reserved);
        }
        (table, start + Duration::from_secs(3))
    }

    #[test]
    fn the_one_that_is_idle_for_longest_leaves_first_then_who_owes_a_request() {
        let (mut table, now) = full();
        table.note(0, Phase::Busy);
        table.note(1, Phase::Idle(now + Duration::from_secs(1)));
        table.note(2, Phase::Idle(now));
        for (gone, id) in [(2, 3), (1, 4)] {
            assert_eq!(
                table.admit(now).map(|new| (new.id, new.is_reserved)),
                Some((id, false))
            );
            assert!(!table.entries.contains_key(&gone), "{gone}");
            table.note(id, Phase::Busy);
        }
        let (mut table, now) = full();
        table.admit(now).unwrap();
        assert!(
            !table.entries.contains_key(&0),
            "the oldest of all that wait"
        );
    }

    #[test]
    fn when_all_are_busy_a_few_more_are_let_in_for_health_checks() {
        let (mut table, now) = full();
        (0..3).for_each(|id| table.note(id, Phase::Busy));
        let reserved: Vec<_> = (0..RESERVED).map(|_| table.admit(now).unwrap()).collect();
        assert!(reserved.iter().all(|admission| admission.is_reserved));
        // One more takes the place of the first of these; if they are all busy too, there is none.
        assert!(table.admit(now).unwrap().is_reserved);
        assert_eq!(table.entries.len(), 3 + RESERVED);
        assert!(!table.entries.contains_key(&reserved[0].id));
        for id in 0..table.next {
            table.note(id, Phase::Busy);
        }
        assert!(table.admit(now).is_none());
        // None of them takes a place from within the limit, and a free one is not reserved.
        table.remove(1);
        assert!(!table.admit(now).unwrap().is_reserved);
        assert_eq!(
            (table.reserved, table.entries.len()),
            (RESERVED, 3 + RESERVED)
        );
    }

    #[test]
    fn one_that_left_is_not_counted_again() {
        let (mut table, now) = full();
        table.remove(0);
        table.remove(0);
        table.note(0, Phase::Idle(now));
        assert_eq!((table.entries.len(), table.leaving.len()), (2, 2));
        assert_eq!(table.phase(0), Phase::Busy);
    }
}
