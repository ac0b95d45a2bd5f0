//! Where the groups of a step come from.
//!
//! A step asks for its groups part by part, so that it can train on the first ones while the others are still being
//! played. In order, the groups of a step are those of its problems, and which weights play them is decided before
//! they are played. [`Asynchronous`] takes the groups that finish first.

use super::asynchronous::Asynchronous;
use super::config::Config;
use super::env::Problem;
use super::rollout::{Played, mix, play_some};
use crate::Error;
use crate::data::Batches;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tinkrs::SamplingClient;
use tokio::task::{JoinError, JoinSet};

/// Some groups of a step.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The groups, each with its problem.
    pub(super) played: Played,
    /// All problems that had their turn, those without a group included.
    pub(super) problems: Vec<usize>,
    /// Why an episode that was left out failed.
    pub(super) failed: Option<Error>,
    /// How many steps older than the present ones the oldest weights are that played.
    pub(super) staleness: usize,
    /// How many groups were too old since the part before this one.
    pub(super) stale: usize,
}

/// What plays the episodes of a run.
pub(super) enum Players<'d> {
    InOrder(InOrder<'d>),
    Asynchronous(Asynchronous<'d>),
}

impl<'d> Players<'d> {
    /// Gets ready to play. `done` are the problems that the run has trained on.
    pub(super) fn new(
        config: &'d Config,
        problems: &'d [Arc<dyn Problem>],
        done: impl Iterator<Item = usize>,
    ) -> Result<Self, Error> {
        let batches = Batches::new(problems.len(), config.policy.problems_per_step, config.seed)?;
        Ok(if config.policy.asynchronous {
            Self::Asynchronous(Asynchronous::new(config, problems, batches, done))
        } else {
            Self::InOrder(InOrder {
                config,
                problems,
                batches,
                playing: VecDeque::new(),
            })
        })
    }

    /// Starts the episodes of a step, and of later ones as far as their weights may be this old.
    pub(super) fn begin(&mut self, step: usize, sampler: &SamplingClient) {
        match self {
            Self::InOrder(players) => players.begin(step, sampler),
            Self::Asynchronous(players) => players.begin(step),
        }
    }

    /// Returns the groups of a part of the present step.
    ///
    /// # Errors
    /// If an environment fails and that is not tolerated, or the server does.
    pub(super) async fn part(
        &mut self,
        part: usize,
        sampler: &SamplingClient,
    ) -> Result<Part, Error> {
        match self {
            Self::InOrder(players) => players.part().await,
            Self::Asynchronous(players) => players.part(part, sampler).await,
        }
    }

    /// Ends the present step.
    pub(super) fn end(&mut self) {
        if let Self::InOrder(players) = self {
            players.playing.pop_front();
        }
    }
}

/// Returns which of `count` items are in a part.
pub(super) fn range(count: usize, part: usize, parts: usize) -> Range<usize> {
    count * part / parts..count * (part + 1) / parts
}

/// Names what ended in a task.
pub(super) fn panicked(panic: JoinError) -> Error {
    Error::Caller {
        what: "an environment",
        source: panic.into(),
    }
}

/// Plays the problems of each step, in the order of the steps.
pub(super) struct InOrder<'d> {
    config: &'d Config,
    problems: &'d [Arc<dyn Problem>],
    batches: Batches,
    /// The present step, and those after it.
    playing: VecDeque<Playing>,
}

/// The episodes of a step, being played in tasks of their own. Dropping it stops them.
struct Playing {
    /// How many steps after its weights the step comes.
    staleness: usize,
    parts: VecDeque<PlayingPart>,
}

struct PlayingPart {
    problems: Vec<usize>,
    task: JoinSet<Result<(Played, Option<Error>), Error>>,
}

impl InOrder<'_> {
    fn begin(&mut self, step: usize, sampler: &SamplingClient) {
        let policy = &self.config.policy;
        while self.playing.len() <= policy.max_staleness && step + self.playing.len() < policy.steps
        {
            let ahead = self.playing.len();
            let playing = self.start(step + ahead, ahead, sampler);
            self.playing.push_back(playing);
        }
    }

    fn start(&self, step: usize, staleness: usize, sampler: &SamplingClient) -> Playing {
        let (config, chosen) = (self.config, self.batches.batch(step));
        let (seed, parts) = (Some(mix(config.seed, step as u64)), config.policy.parts());
        let part = |part: usize| {
            let range = range(chosen.len(), part, parts);
            let (first, chosen) = (range.start, chosen[range].to_vec());
            let problems = chosen
                .iter()
                .map(|index| Arc::clone(&self.problems[*index]));
            let problems: Vec<_> = problems.collect();
            let (sampler, group_size) = (sampler.clone(), config.policy.group_size);
            let limits = config.episodes;
            let mut task = JoinSet::new();
            task.spawn(async move {
                play_some(&sampler, &problems, first, &limits, group_size, seed).await
            });
            PlayingPart {
                problems: chosen,
                task,
            }
        };
        Playing {
            staleness,
            parts: (0..parts).map(part).collect(),
        }
    }

    async fn part(&mut self) -> Result<Part, Error> {
        let playing = self.playing.front_mut().expect("the step has begun");
        let mut part = playing.parts.pop_front().expect("each part is asked once");
        let joined = part.task.join_next().await.expect("the task was spawned");
        let (mut played, failed) = joined.map_err(panicked)??;
        for problem in &mut played.problems {
            *problem = part.problems[*problem];
        }
        Ok(Part {
            played,
            failed,
            staleness: playing.staleness,
            problems: part.problems,
            stale: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_every_group_once() {
        for (count, parts) in [(8, 1), (8, 3), (2, 4), (0, 2)] {
            let all = (0..parts).flat_map(|part| range(count, part, parts));
            assert_eq!(Vec::from_iter(all), Vec::from_iter(0..count));
        }
    }
}
