//! Groups in the order in which they finish.
//!
//! Episodes are played all the time, by whatever weights are the newest when they start. A step takes the groups that
//! are there first, so nobody waits for the slowest. What finishes too many steps after its weights is dropped or
//! played again. Which groups a step gets depends on time, so such a run cannot be repeated bit for bit; a run that
//! resumes goes on with the problems that it has not trained on.

use super::config::{Config, Stale};
use super::env::Problem;
use super::playing::{Part, panicked, range};
use super::rollout::{Played, mix, play_some};
use crate::Error;
use crate::data::Batches;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tinkrs::SamplingClient;
use tokio::task::JoinSet;

/// A problem in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    problem: usize,
    /// The turn's place among all of the run.
    place: usize,
    /// How often it was played before, with weights that got too old.
    stale: u64,
    /// How many steps the weights have seen.
    version: usize,
}

/// What a group's task returns.
type Finished = (Ticket, Result<(Played, Option<Error>), Error>);

/// Plays problems all the time.
pub(super) struct Asynchronous<'d> {
    config: &'d Config,
    problems: &'d [Arc<dyn Problem>],
    turns: Turns,
    again: VecDeque<Ticket>,
    tasks: JoinSet<Finished>,
    step: usize,
    /// How many groups the present step has got.
    taken: usize,
}

impl<'d> Asynchronous<'d> {
    pub(super) fn new(
        config: &'d Config,
        problems: &'d [Arc<dyn Problem>],
        batches: Batches,
        done: impl Iterator<Item = usize>,
    ) -> Self {
        Self {
            config,
            problems,
            turns: Turns::new(problems.len(), batches, done),
            again: VecDeque::new(),
            tasks: JoinSet::new(),
            step: 0,
            taken: 0,
        }
    }

    pub(super) fn begin(&mut self, step: usize) {
        (self.step, self.taken) = (step, 0);
    }

    /// Starts as many groups as the run may have under way, and can still use.
    fn fill(&mut self, sampler: &SamplingClient) {
        let policy = &self.config.policy;
        let in_a_step = policy.problems_per_step;
        let most = in_a_step.saturating_mul(policy.max_staleness.saturating_add(1));
        let needed = (policy.steps - self.step).saturating_mul(in_a_step) - self.taken;
        while self.tasks.len() < most.min(needed) {
            let ticket = self.again.pop_front().unwrap_or_else(|| self.turns.next());
            let ticket = Ticket {
                version: self.step,
                ..ticket
            };
            let problem = [Arc::clone(&self.problems[ticket.problem])];
            let (sampler, limits) = (sampler.clone(), self.config.episodes);
            let group_size = policy.group_size;
            let seed = mix(mix(self.config.seed, ticket.place as u64), ticket.stale);
            self.tasks.spawn(async move {
                let play = play_some(&sampler, &problem, 0, &limits, group_size, Some(seed));
                (ticket, play.await)
            });
        }
    }

    pub(super) async fn part(
        &mut self,
        part: usize,
        sampler: &SamplingClient,
    ) -> Result<Part, Error> {
        let policy = &self.config.policy;
        let wanted = range(policy.problems_per_step, part, policy.parts()).len();
        let mut taken = Part::default();
        while taken.played.groups.len() < wanted {
            self.fill(sampler);
            let joined = self.tasks.join_next().await.expect("groups are under way");
            let (ticket, played) = joined.map_err(panicked)?;
            let (played, failed) = played?;
            let age = self.step - ticket.version;
            if age > policy.max_staleness {
                taken.stale += 1;
                if policy.stale == Stale::Requeue {
                    self.again.push_back(Ticket {
                        stale: ticket.stale + 1,
                        ..ticket
                    });
                }
                continue;
            }
            let failures = taken.problems.len() - taken.played.groups.len();
            if let (true, Some(error)) = (played.groups.is_empty(), failed) {
                // As many as a step has, and none of them could be played: the next could not, either.
                if failures + 1 >= policy.problems_per_step {
                    return Err(error);
                }
                taken.failed = Some(error);
            }
            self.taken += played.groups.len();
            taken.staleness = taken.staleness.max(age);
            taken.problems.push(ticket.problem);
            taken.played.extend(Played {
                problems: vec![ticket.problem; played.groups.len()],
                ..played
            });
        }
        Ok(taken)
    }
}

/// The order of problems without end: pass after pass over all of them, each in an order of its own.
struct Turns {
    count: usize,
    batches: Batches,
    place: usize,
    /// The order of the present pass.
    pass: Vec<usize>,
    /// Turns that a run which resumes has had, by problem.
    done: BTreeMap<usize, usize>,
}

impl Turns {
    fn new(count: usize, batches: Batches, done: impl Iterator<Item = usize>) -> Self {
        let mut had = BTreeMap::new();
        for problem in done {
            *had.entry(problem).or_default() += 1;
        }
        Self {
            count,
            batches,
            place: 0,
            pass: Vec::new(),
            done: had,
        }
    }

    fn next(&mut self) -> Ticket {
        loop {
            let place = self.place;
            self.place += 1;
            if place.is_multiple_of(self.count) {
                self.pass = self.batches.epoch(place / self.count);
            }
            let problem = self.pass[place % self.count];
            match self.done.get_mut(&problem) {
                Some(had) if *had > 0 => *had -= 1,
                _ => {
                    return Ticket {
                        problem,
                        place,
                        stale: 0,
                        version: 0,
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_resumes_goes_on_with_what_had_no_turn() {
        let batches = Batches::new(5, 2, 7).unwrap();
        let turns = |done: &[usize], count: usize| -> Vec<(usize, usize)> {
            let mut turns = Turns::new(5, batches.clone(), done.iter().copied());
            let next = |_| {
                let ticket = turns.next();
                (ticket.place, ticket.problem)
            };
            (0..count).map(next).collect()
        };
        let all = turns(&[], 10);
        let mut first: Vec<_> = all[..5].iter().map(|turn| turn.1).collect();
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3, 4]);
        // The third of the first pass was trained on before the others.
        let done = [all[2].1, all[0].1, all[1].1, all[4].1, all[5].1];
        let left = turns(&done, 5);
        assert_eq!(left[0], all[3]);
        assert_eq!(left[1..], all[6..10]);
    }
}
