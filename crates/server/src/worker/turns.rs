//! Who is next: fair turns, by the time that they take.
//!
//! Those who take turns stand in a ring. Whoever is in front is served for as long as it has credit, and
//! pays for each turn with the time that it took; without credit left it gets a [`QUANTUM`] and goes to the
//! back. A turn may take longer than the credit: then the next rounds are left out until that is paid.
//! Newcomers stand at the back, so a crowd of them cannot keep anybody from their turn, and whoever has
//! nothing to do leaves: time in which nothing was wanted is not saved up.
//!
//! It knows nothing of clocks: what a turn cost, it is told.

use std::collections::VecDeque;
use std::time::Duration;

/// The time that everyone gets in a round.
const QUANTUM: Duration = Duration::from_millis(20);
/// A turn that took longer than this many rounds is not paid for further.
const MOST_ROUNDS: u32 = 500;

/// What one who stands in the ring wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A turn.
    Turn,
    /// A turn, but not now: it waits for something else.
    Later,
    /// To leave.
    Leave,
}

/// The ring of those who take turns.
#[derive(Debug)]
pub(super) struct Turns<K> {
    ring: VecDeque<Member<K>>,
}

#[derive(Debug)]
struct Member<K> {
    key: K,
    credit: Duration,
    debt: Duration,
}

impl<K> Member<K> {
    fn new(key: K) -> Self {
        let (credit, debt) = (QUANTUM, Duration::ZERO);
        Self { key, credit, debt }
    }

    fn pay(&mut self, time: Duration) {
        let unpaid = time.saturating_sub(self.credit);
        self.credit = self.credit.saturating_sub(time);
        self.debt = (self.debt + unpaid).min(QUANTUM * MOST_ROUNDS);
    }

    fn earn(&mut self) {
        self.credit += QUANTUM.saturating_sub(self.debt);
        self.debt = self.debt.saturating_sub(QUANTUM);
    }
}

impl<K: Copy + PartialEq> Turns<K> {
    /// Makes a ring of these.
    pub(super) fn new(keys: impl IntoIterator<Item = K>) -> Self {
        Self {
            ring: keys.into_iter().map(Member::new).collect(),
        }
    }

    /// Takes somebody in who is not in the ring.
    pub(super) fn join(&mut self, key: K) {
        self.ring.push_back(Member::new(key));
    }

    /// Returns whose turn it is, if anybody wants one now. Those who wish to leave are out afterwards.
    pub(super) fn next(&mut self, mut wish: impl FnMut(K) -> Wish) -> Option<K> {
        let mut in_vain = 0;
        while let Some(member) = self.ring.front_mut() {
            match wish(member.key) {
                Wish::Turn if !member.credit.is_zero() => return Some(member.key),
                Wish::Turn => {
                    member.earn();
                    in_vain = 0;
                    self.ring.rotate_left(1);
                }
                Wish::Later => {
                    in_vain += 1;
                    if in_vain > self.ring.len() {
                        return None;
                    }
                    self.ring.rotate_left(1);
                }
                Wish::Leave => drop(self.ring.pop_front()),
            }
        }
        None
    }

    /// Notes what a turn has cost.
    pub(super) fn charge(&mut self, key: K, time: Duration) {
        if let Some(member) = self.ring.iter_mut().find(|member| member.key == key) {
            member.pay(time);
        }
    }

    /// Returns whether nobody is in the ring.
    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives turns to those who always want one, and returns how long each was served in this time.
    fn serve(costs: &[(char, u64)], milliseconds: u64) -> Vec<(char, u64)> {
        let mut turns = Turns::new(costs.iter().map(|(key, _)| *key));
        let mut served: Vec<_> = costs.iter().map(|(key, _)| (*key, 0)).collect();
        let mut time = 0;
        while time < milliseconds {
            let key = turns.next(|_| Wish::Turn).unwrap();
            let index = costs.iter().position(|(other, _)| *other == key).unwrap();
            let cost = costs[index].1;
            turns.charge(key, Duration::from_millis(cost));
            served[index].1 += cost;
            time += cost;
        }
        served
    }

    #[test]
    fn everyone_gets_the_same_time_however_long_their_turns_are() {
        for costs in [
            vec![('a', 1), ('b', 1)],
            vec![('a', 1), ('b', 300)],
            vec![('a', 7), ('b', 50), ('c', 1000)],
        ] {
            let served = serve(&costs, 60_000);
            let share = 60_000 / costs.len() as u64;
            for (key, time) in &served {
                assert!(time.abs_diff(share) <= 1000, "{key} of {costs:?}: {time}");
            }
        }
    }

    #[test]
    fn a_newcomer_is_next_after_the_turn_under_way() {
        let mut turns = Turns::new(['a']);
        for _ in 0..10 {
            assert_eq!(turns.next(|_| Wish::Turn), Some('a'));
            turns.charge('a', Duration::from_millis(300));
        }
        assert_eq!(turns.next(|_| Wish::Turn), Some('a'));
        turns.join('b');
        turns.charge('a', Duration::from_millis(300));
        assert_eq!(turns.next(|_| Wish::Turn), Some('b'));
    }

    #[test]
    fn a_crowd_of_newcomers_does_not_push_anybody_back() {
        let mut turns = Turns::new([0]);
        turns.charge(0, Duration::from_millis(60));
        let mut before_the_first = 0;
        for newcomer in 1..1000 {
            turns.join(newcomer);
            turns.join(newcomer + 1000);
            let next = turns.next(|_| Wish::Turn).unwrap();
            if next == 0 {
                break;
            }
            turns.charge(next, QUANTUM);
            before_the_first += 1;
        }
        // It owes a few rounds, and the ring grows twofold in each of them.
        assert!(before_the_first < 40, "{before_the_first}");
    }

    #[test]
    fn who_waits_keeps_its_place_and_who_leaves_is_forgotten() {
        let mut turns = Turns::new(['a', 'b', 'c']);
        let wish = |key| match key {
            'a' => Wish::Later,
            'b' => Wish::Leave,
            _ => Wish::Turn,
        };
        assert_eq!(turns.next(wish), Some('c'));
        assert_eq!(turns.next(|_| Wish::Later), None);
        assert_eq!(turns.ring.len(), 2);
        // Nobody pays for one who has left.
        turns.charge('b', QUANTUM);
        assert_eq!(turns.next(|_| Wish::Leave), None);
        assert!(turns.is_empty());
    }

    #[test]
    fn a_turn_without_end_is_forgiven_some_time() {
        let mut turns = Turns::new(['a', 'b']);
        turns.charge('a', Duration::from_secs(3600));
        let mut others = 0;
        while turns.next(|_| Wish::Turn) == Some('b') {
            turns.charge('b', QUANTUM);
            others += 1;
        }
        assert!(others <= MOST_ROUNDS + 1, "{others}");
    }
}
