//! Places in a queue, shared by owners.
//!
//! Whatever waits or is worked on holds a [`QueuePlace`]; without one, its request is answered by 429. An owner
//! has a limit of its own, and all owners together have one, which bounds the memory. So that a few do not use
//! that one up, half of it is for owners who have only few places: hundreds of them find room beside any
//! number of others who take all they can.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::auth::Owner;
use crate::lock::lock;

/// All owners together have the places of this many.
const OWNERS: usize = 8;
/// Few places are this part of the limit of an owner.
const FEW: usize = 64;

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    of_one_owner: usize,
    of_all: usize,
    /// What an owner may have when half of all places are taken.
    few: usize,
}

impl Limits {
    /// Decides whether an owner who has some of the taken places may have one more.
    fn allow(self, owned: usize, taken: usize) -> bool {
        let is_half_empty = taken < self.of_all / 2;
        let limit = if is_half_empty {
            self.of_one_owner
        } else {
            self.few
        };
        owned < limit && taken < self.of_all
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

/// A place in a queue, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    places: Arc<Places>,
    owner: Owner,
}

impl Places {
    /// Makes a queue in which one owner has at most this many places.
    pub(crate) fn new(of_one_owner: usize) -> Arc<Self> {
        Arc::new(Self {
            limits: Limits {
                of_one_owner,
                of_all: of_one_owner.saturating_mul(OWNERS),
                few: (of_one_owner / FEW).max(1),
            },
            taken: Mutex::default(),
        })
    }

    /// Takes a place, if the owner may have one more.
    pub(crate) fn take(self: &Arc<Self>, owner: Owner) -> Option<QueuePlace> {
        let mut taken = lock(&self.taken);
        let owned = taken.by_owner.get(&owner).copied().unwrap_or(0);
        if !self.limits.allow(owned, taken.all) {
            return None;
        }
        taken.all += 1;
        taken.by_owner.insert(owner, owned + 1);
        Some(QueuePlace {
            places: Arc::clone(self),
            owner,
        })
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        taken.all -= 1;
        // Owners without a place are forgotten: anyone can make up keys.
        match taken.by_owner.get_mut(&self.owner) {
            Some(owned) if *owned > 1 => *owned -= 1,
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
        std::iter::from_fn(|| places.take(owner(number))).collect()
    }

    #[test]
    fn an_owner_has_a_limit_and_half_of_all_is_for_those_who_have_few() {
        let limits = Limits {
            of_one_owner: 4,
            of_all: 10,
            few: 2,
        };
        let cases = [
            (0, 0, true),
            (3, 3, true),
            (4, 4, false), // its own limit
            (2, 4, true),
            (2, 5, false), // the second half is for those who have few
            (1, 5, true),
            (1, 9, true),
            (0, 10, false),
            (0, 11, false),
        ];
        for (owned, taken, expected) in cases {
            let allowed = limits.allow(owned, taken);
            assert_eq!(allowed, expected, "{owned} of {taken} taken");
        }
    }

    #[test]
    fn hundreds_who_take_all_they_can_leave_the_next_one_room() {
        let places = Places::new(1024);
        let mut held = Vec::new();
        for number in 0..250 {
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
            places.take(owner(2)).is_some(),
            "not its queue that is full"
        );
        drop(held);
        assert_eq!(take_all(&places, 1).len(), 2);
        let taken = lock(&places.taken);
        assert!(taken.all == 0 && taken.by_owner.is_empty());
    }
}
