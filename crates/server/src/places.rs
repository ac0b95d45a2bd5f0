//! Places in a queue, shared by owners.
//!
//! Whatever waits or is worked on holds a [`QueuePlace`]; without one, its request is answered by 429. An owner
//! has a limit of its own, and all owners together have one, which bounds the memory. So that a few do not use
//! that one up, half of it is for owners who have only few places, and half of that for those who have none: two
//! thousand of them find room beside any number of others who take all they can.
//!
//! The memory of what waits is shared by the same rule, with a place for each byte ([`waiting`](crate::waiting)).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::auth::Owner;
use crate::lock::lock;

/// All owners together have the places of this many.
const OWNERS: usize = 8;
/// Few places are this part of the limit of an owner.
const FEW: usize = 64;
/// Few bytes are this part of all of them.
const FEW_BYTES: usize = 64;

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    of_one_owner: usize,
    of_all: usize,
    /// What an owner may have when half of all places are taken.
    few: usize,
    /// What an owner may have when three quarters are.
    least: usize,
}

impl Limits {
    /// Decides whether an owner who has some of the taken places may have more.
    fn allow(self, owned: usize, taken: usize, more: usize) -> bool {
        let taken = taken.saturating_add(more);
        let limit = if taken <= self.of_all / 2 {
            self.of_one_owner
        } else if taken <= self.of_all - self.of_all / 4 {
            self.few
        } else {
            self.least
        };
        owned.saturating_add(more) <= limit && taken <= self.of_all
    }
}

/// The places of a queue.
#[derive(Debug)]
pub(crate) struct Places {
    limits: Limits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_owner: HashMap<Owner, usize>,
}

/// A place in a queue, or several, which are free again when this is dropped.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    places: Arc<Places>,
    owner: Owner,
    count: usize,
}

impl Places {
    /// Makes a queue in which one owner has at most this many places.
    pub(crate) fn new(of_one_owner: usize) -> Arc<Self> {
        Arc::new(Self {
            limits: Limits {
                of_one_owner,
                of_all: of_one_owner.saturating_mul(OWNERS),
                few: (of_one_owner / FEW).max(1),
                least: 1,
            },
            taken: Mutex::default(),
        })
    }

    /// Makes room for bytes, all of which one owner may have half of.
    pub(crate) fn of_bytes(of_all: usize) -> Arc<Self> {
        Arc::new(Self {
            limits: Limits {
                of_one_owner: of_all / 2,
                of_all,
                few: of_all / FEW_BYTES,
                least: of_all / FEW_BYTES,
            },
            taken: Mutex::default(),
        })
    }

    /// Takes this many places, if the owner may have so many more.
    pub(crate) fn take(self: &Arc<Self>, owner: Owner, count: usize) -> Option<QueuePlace> {
        let mut taken = lock(&self.taken);
        let owned = taken.by_owner.get(&owner).copied().unwrap_or(0);
        if !self.limits.allow(owned, taken.all, count) {
            return None;
        }
        taken.all += count;
        taken.by_owner.insert(owner, owned + count);
        Some(QueuePlace {
            places: Arc::clone(self),
            owner,
            count,
        })
    }

    /// Returns how many places are taken.
    pub(crate) fn taken(&self) -> usize {
        lock(&self.taken).all
    }

    /// Returns whether an owner has a place.
    pub(crate) fn has_some(&self, owner: Owner) -> bool {
        lock(&self.taken).by_owner.contains_key(&owner)
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        taken.all -= self.count;
        // Owners without a place are forgotten: anyone can make up keys.
        match taken.by_owner.get_mut(&self.owner) {
            Some(owned) if *owned > self.count => *owned -= self.count,
            _ => drop(taken.by_owner.remove(&self.owner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: usize) -> Owner {
        Owner::of_key(&number.to_le_bytes())
    }

    fn take_all(places: &Arc<Places>, number: usize) -> Vec<QueuePlace> {
        std::iter::from_fn(|| places.take(owner(number), 1)).collect()
    }

    #[test]
    fn an_owner_has_a_limit_and_half_of_all_is_for_those_who_have_few_or_none() {
        let limits = Limits {
            of_one_owner: 4,
            of_all: 10,
            few: 2,
            least: 1,
        };
        let cases = [
            (0, 0, true),
            (3, 3, true),
            (4, 4, false), // its own limit
            (2, 4, true),
            (2, 5, false), // the second half is for those who have few
            (1, 5, true),
            (1, 8, false), // the last quarter is for those who have none
            (0, 9, true),
            (0, 10, false),
            (0, 11, false),
        ];
        for (owned, taken, expected) in cases {
            let allowed = limits.allow(owned, taken, 1);
            assert_eq!(allowed, expected, "{owned} of {taken} taken");
        }
        let cases = [
            (0, 0, 4, true),
            (0, 0, 5, false),
            (0, 2, 4, false), // it would reach into the second half
            (0, 6, 2, true),
            (0, 7, 2, false),
            (0, 10, 0, true),
            (0, 1, usize::MAX, false),
        ];
        for (owned, taken, more, expected) in cases {
            let allowed = limits.allow(owned, taken, more);
            assert_eq!(allowed, expected, "{more} for {owned} of {taken} taken");
        }
    }

    #[test]
    fn one_owner_has_half_of_the_bytes_and_others_find_some() {
        let room = Places::of_bytes(6400);
        let half = room.take(owner(1), 3200).unwrap();
        assert!(room.take(owner(1), 1).is_none());
        assert!(room.take(owner(2), 101).is_none());
        let others: Vec<_> = (2..34)
            .map(|number| room.take(owner(number), 100))
            .collect();
        assert!(others.iter().all(Option::is_some));
        assert_eq!(room.taken(), 6400);
        assert!(room.has_some(owner(33)) && !room.has_some(owner(34)));
        drop((half, others));
        assert_eq!(room.taken(), 0);
        assert!(room.take(owner(3), 3200).is_some());
    }

    #[test]
    fn two_thousand_who_take_all_they_can_leave_the_next_one_room() {
        let places = Places::new(1024);
        let mut held = Vec::new();
        for number in 0..2000 {
            let taken = take_all(&places, number);
            assert!(!taken.is_empty(), "owner {number}");
            held.push(taken);
        }
        assert_eq!(held[0].len(), 1024, "one alone has all of its own");
        let all: usize = held.iter().map(Vec::len).sum();
        assert!(all <= 1024 * OWNERS, "{all}");
    }

    #[test]
    fn places_and_owners_are_forgotten_when_they_are_given_back() {
        let places = Places::new(2);
        let held = take_all(&places, 1);
        assert_eq!(held.len(), 2);
        assert!(
            places.take(owner(2), 1).is_some(),
            "not its queue that is full"
        );
        drop(held);
        assert_eq!(take_all(&places, 1).len(), 2);
        let taken = lock(&places.taken);
        assert!(taken.all == 0 && taken.by_owner.is_empty());
    }
}
