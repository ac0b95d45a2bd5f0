//! Which requests for samples the sampler is given, and which wait outside.
//!
//! Inside of the sampler a request takes memory, for its adapter at least. So it is given no more than it
//! can use soon: of each owner as many samples that have not begun as make its part of a batch, and at least
//! one request. The sampler then divides its batch between owners. It never runs out: as samples begin,
//! others follow.

use std::collections::{BTreeMap, VecDeque};

use crate::auth::Owner;

/// Samples that wait inside of the sampler for those that run there to end; about a batch of it.
const AHEAD: usize = 64;

/// Requests that wait outside of the sampler, in a line for each owner.
#[derive(Debug)]
pub(super) struct Feed<R> {
    lines: BTreeMap<Owner, Line<R>>,
}

#[derive(Debug)]
struct Line<R> {
    /// Each with its number of samples.
    waiting: VecDeque<(usize, R)>,
    /// How many samples the sampler was given that have not begun.
    ahead: usize,
}

impl<R> Feed<R> {
    pub(super) fn new() -> Self {
        Self {
            lines: BTreeMap::new(),
        }
    }

    /// Returns whether no request waits here.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.values().all(|line| line.waiting.is_empty())
    }

    /// Takes a request at the end of its owner's line.
    pub(super) fn push(&mut self, owner: Owner, samples: usize, request: R) {
        let line = self.lines.entry(owner).or_insert_with(|| Line {
            waiting: VecDeque::new(),
            ahead: 0,
        });
        line.waiting.push_back((samples, request));
    }

    /// Returns a request that the sampler should have now.
    pub(super) fn pop(&mut self) -> Option<R> {
        let part = (AHEAD / self.lines.len().max(1)).max(1);
        let mut lines = self.lines.values_mut().filter(|line| line.ahead < part);
        lines.find_map(|line| {
            let (samples, request) = line.waiting.pop_front()?;
            line.ahead += samples;
            Some(request)
        })
    }

    /// Takes a request of an owner out of its line: it has ended.
    pub(super) fn remove(&mut self, owner: Owner, is_meant: impl Fn(&R) -> bool) -> Option<R> {
        let waiting = &mut self.lines.get_mut(&owner)?.waiting;
        let index = waiting.iter().position(|(_, request)| is_meant(request))?;
        let (_, request) = waiting.remove(index)?;
        self.begun(owner, 0);
        Some(request)
    }

    /// Takes the requests of which this is true out of the lines, as if the sampler needed them now.
    pub(super) fn extract(&mut self, is_meant: impl Fn(&R) -> bool) -> Vec<R> {
        let mut extracted = Vec::new();
        for line in self.lines.values_mut() {
            let waiting = std::mem::take(&mut line.waiting).into_iter();
            let (meant, others): (Vec<_>, Vec<_>) =
                waiting.partition(|(_, request)| is_meant(request));
            line.waiting = others.into();
            line.ahead += meant.iter().map(|(samples, _)| samples).sum::<usize>();
            extracted.extend(meant.into_iter().map(|(_, request)| request));
        }
        extracted
    }

    /// Notes that samples of an owner have begun, or will not.
    pub(super) fn begun(&mut self, owner: Owner, samples: usize) {
        if let Some(line) = self.lines.get_mut(&owner) {
            line.ahead = line.ahead.saturating_sub(samples);
            if line.ahead == 0 && line.waiting.is_empty() {
                self.lines.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: u32) -> Owner {
        Owner::of_key(&number.to_le_bytes())
    }

    /// Puts requests in a line and returns how many of them the sampler is given.
    fn fed(requests: &[(u32, usize)]) -> usize {
        let mut feed = Feed::new();
        for (number, samples) in requests {
            feed.push(owner(*number), *samples, ());
        }
        std::iter::from_fn(|| feed.pop()).count()
    }

    #[test]
    fn the_sampler_is_given_a_batch_ahead_divided_between_owners() {
        let cases = [
            (vec![(1, 1); 1000], 64),
            (vec![(1, 16); 1000], 4),
            (vec![(1, 100); 2], 1),
            (vec![(1, 4096), (2, 1)], 2),
            ([vec![(1, 1); 1000], vec![(2, 1); 1000]].concat(), 64),
            ([vec![(1, 1); 1000], vec![(2, 4096); 3]].concat(), 33),
            ((0..1000).map(|number| (number, 1)).collect(), 1000),
        ];
        for (requests, expected) in cases {
            let owners = requests.len();
            assert_eq!(fed(&requests), expected, "{owners} from {:?}", requests[0]);
        }
    }

    #[test]
    fn as_samples_begin_others_follow_in_order() {
        let mut feed = Feed::new();
        for number in 0..6 {
            feed.push(owner(1), 32, number);
        }
        assert_eq!(
            (feed.pop(), feed.pop(), feed.pop()),
            (Some(0), Some(1), None)
        );
        feed.begun(owner(1), 1);
        assert_eq!((feed.pop(), feed.pop()), (Some(2), None));
        feed.begun(owner(1), 31);
        assert_eq!(feed.pop(), None, "64 are ahead again");
        feed.begun(owner(1), 32);
        assert_eq!(feed.pop(), Some(3));
    }

    #[test]
    fn what_is_taken_out_counts_as_given() {
        let mut feed = Feed::new();
        for number in 0..100 {
            feed.push(owner(number % 2), 1, number);
        }
        let taken = feed.extract(|number| *number >= 20);
        assert_eq!(taken.len(), 80);
        assert_eq!(feed.pop(), None, "each has 40 ahead");
        feed.begun(owner(0), 40);
        assert_eq!(feed.pop(), Some(0));
        assert!(!feed.is_empty());
    }

    #[test]
    fn an_owner_without_requests_is_forgotten() {
        let mut feed = Feed::new();
        feed.push(owner(2), 3, ());
        assert_eq!(feed.remove(owner(1), |()| true), None);
        assert_eq!(feed.remove(owner(2), |()| false), None);
        assert_eq!(feed.remove(owner(2), |()| true), Some(()));
        assert!(feed.lines.is_empty());
        feed.push(owner(1), 3, ());
        assert!(feed.pop().is_some() && feed.is_empty());
        feed.begun(owner(1), 2);
        assert_eq!(feed.lines.len(), 1);
        feed.begun(owner(1), 1);
        assert!(feed.lines.is_empty());
    }
}
