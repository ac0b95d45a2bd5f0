//! Playing episodes with a sampler.

use super::env::Problem;
use super::episode::Episode;
use super::episodes::Episodes;
use crate::Error;
use crate::run::Numbers;
use futures_util::future::{join_all, try_join_all};
use std::sync::Arc;
use tinkrs::{BoxError, SamplingClient, SamplingParams};

/// Advantages are sent in 32 bits, which end at 3e38: rewards, and what they differ by, stay far below.
const MOST_REWARD: f64 = 1e30;

/// Episodes from one problem, which are compared with each other.
pub type Group = Vec<Episode>;

/// Episodes that were played, and how many could not be.
#[derive(Debug, Default, PartialEq)]
pub struct Played {
    /// The groups that are large enough.
    pub groups: Vec<Group>,
    /// For each group, which of the problems it is from.
    pub problems: Vec<usize>,
    /// How many episodes failed, those that were played again included.
    pub failures: usize,
    /// How many episodes were left out, since they failed and were not played again.
    pub dropped: usize,
    /// How many groups were left out, since too few of their episodes were left.
    pub dropped_groups: usize,
    /// Why an episode failed: the last one that did.
    pub last_failure: Option<String>,
}

impl Played {
    /// Adds others.
    pub(super) fn extend(&mut self, others: Self) {
        self.groups.extend(others.groups);
        self.problems.extend(others.problems);
        self.failures += others.failures;
        self.dropped += others.dropped;
        self.dropped_groups += others.dropped_groups;
        self.last_failure = others.last_failure.or(self.last_failure.take());
    }

    /// Returns how many failed, as numbers of a step.
    pub(super) fn numbers(&self) -> Numbers {
        let counts = [
            ("episode_failures", self.failures),
            ("episodes_dropped", self.dropped),
            ("groups_dropped", self.dropped_groups),
        ];
        let counts = counts.into_iter();
        counts
            .map(|(name, count)| (name.to_owned(), count as f64))
            .collect()
    }
}

/// Plays a group of episodes of each problem, all at the same time.
///
/// With a seed, the same sampler plays the same episodes again, on servers whose draws are
/// repeatable.
///
/// # Errors
/// If the server fails, or an environment does and `limits` tolerate none of that or leave no group.
pub async fn play(
    sampler: &SamplingClient,
    problems: &[Arc<dyn Problem>],
    limits: &Episodes,
    group_size: usize,
    seed: Option<u64>,
) -> Result<Played, Error> {
    match play_some(sampler, problems, 0, limits, group_size, seed).await? {
        (played, Some(error)) if played.groups.is_empty() => Err(error),
        (played, _) => Ok(played),
    }
}

/// Plays as [`play`] does, where problems are those of a list from `first` on. Returns also why an episode failed,
/// if one that was left out did.
pub(super) async fn play_some(
    sampler: &SamplingClient,
    problems: &[Arc<dyn Problem>],
    first: usize,
    limits: &Episodes,
    group_size: usize,
    seed: Option<u64>,
) -> Result<(Played, Option<Error>), Error> {
    let group = |(index, problem): (usize, &Arc<dyn Problem>)| {
        let number = (first + index) as u64;
        let seed = move |member: usize| Some(mix(mix(seed?, number), member as u64));
        let members = (0..group_size)
            .map(|member| persistent(sampler, Arc::clone(problem), limits, seed(member)));
        let members = members.collect::<Vec<_>>();
        async move {
            if limits.tolerates() {
                Ok(join_all(members).await)
            } else {
                // The first failure ends the others.
                let members = members.into_iter().map(|member| async {
                    let attempts = member.await;
                    match attempts.played {
                        Ok(_) => Ok(attempts),
                        Err(error) => Err(error),
                    }
                });
                try_join_all(members).await
            }
        }
    };
    let played = try_join_all(problems.iter().enumerate().map(group)).await?;
    let mut result = Played::default();
    let mut last_error = None;
    for ((index, problem), members) in problems.iter().enumerate().zip(played) {
        let mut episodes = Vec::with_capacity(members.len());
        for member in members {
            result.failures += member.failures.len();
            result.last_failure = member.failures.last().cloned().or(result.last_failure);
            match member.played {
                Ok(episode) => episodes.push(episode),
                // The environment's failures are tolerated, not the server's.
                Err(error @ Error::Caller { .. }) => {
                    result.dropped += 1;
                    last_error = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        if episodes.len() < limits.min_group_size.min(group_size) {
            result.dropped_groups += 1;
            continue;
        }
        compare(&**problem, &mut episodes).await?;
        result.groups.push(episodes);
        result.problems.push(index);
    }
    Ok((result, last_error))
}

/// Adds what episodes earn in comparison with the others of their group.
async fn compare(problem: &dyn Problem, group: &mut [Episode]) -> Result<(), Error> {
    let rewards = problem.compare(group).await.map_err(failed)?;
    if rewards.len() != group.len() {
        let problem = format!("{} rewards for a group of {}", rewards.len(), group.len());
        return Err(failed(problem.into()));
    }
    for (episode, reward) in group.iter_mut().zip(rewards) {
        episode.reward += reward;
        usable(episode.reward)?;
    }
    Ok(())
}

/// What became of an episode, played again as often as it may be.
struct Attempts {
    played: Result<Episode, Error>,
    failures: Vec<String>,
}

async fn persistent(
    sampler: &SamplingClient,
    problem: Arc<dyn Problem>,
    limits: &Episodes,
    seed: Option<u64>,
) -> Attempts {
    let mut failures = Vec::new();
    loop {
        let attempt = failures.len() as u64;
        let seed = seed.map(|seed| {
            if attempt == 0 {
                seed
            } else {
                mix(seed, !attempt)
            }
        });
        let play = episode(sampler, &*problem, limits, seed);
        let played = match limits.timeout() {
            None => play.await,
            Some(time) => tokio::time::timeout(time, play).await.unwrap_or_else(|_| {
                let seconds = limits.episode_timeout;
                Err(failed(
                    format!("an episode took longer than {seconds} s").into(),
                ))
            }),
        };
        if let Err(error @ Error::Caller { .. }) = &played {
            failures.push(error.with_cause());
            if failures.len() <= limits.episode_retries {
                continue;
            }
        }
        return Attempts { played, failures };
    }
}

fn failed(source: BoxError) -> Error {
    Error::Caller {
        what: "an environment or its judge",
        source,
    }
}

/// Refuses a reward that is no number, or one whose advantage would be none.
fn usable(reward: f64) -> Result<(), Error> {
    if reward.abs() <= MOST_REWARD {
        return Ok(());
    }
    let problem = format!(
        "a reward is {reward:e}, expected a number from -{MOST_REWARD:e} to {MOST_REWARD:e}"
    );
    Err(failed(problem.into()))
}

/// Plays one episode to its end, or to the first limit.
async fn episode(
    sampler: &SamplingClient,
    problem: &dyn Problem,
    limits: &Episodes,
    seed: Option<u64>,
) -> Result<Episode, Error> {
    let mut env = problem.start().await.map_err(failed)?;
    let mut episode = Episode::default();
    for turn in 0_usize.. {
        let seen = env.observe().map_err(failed)?;
        let mut params = SamplingParams {
            // Not every server takes more than 32 bits with a sign.
            seed: seed.map(|seed| (mix(seed, turn as u64) >> 33) as i64),
            ..problem.params()
        };
        if limits.max_episode_tokens > 0 {
            let room = limits.max_episode_tokens.saturating_sub(seen.len());
            if room == 0 && turn == 0 {
                let (length, most) = (seen.len(), limits.max_episode_tokens);
                let problem =
                    format!("an episode begins with {length} tokens; it may have {most} in all");
                return Err(failed(problem.into()));
            }
            let room = u32::try_from(room).unwrap_or(u32::MAX);
            params.max_tokens = Some(params.max_tokens.map_or(room, |most| most.min(room)));
        }
        if params.max_tokens == Some(0) || (limits.max_turns > 0 && turn == limits.max_turns) {
            episode.cut_short = true;
            break;
        }
        let mut output = sampler.sample(seen.clone(), params).await?;
        let sequence = output
            .sequences
            .pop()
            .ok_or(Error::Missing { what: "sequence" })?;
        let logprobs = sequence
            .logprobs
            .filter(|logprobs| logprobs.len() == sequence.tokens.len());
        let logprobs = logprobs.ok_or(Error::Missing {
            what: "log-probabilities of a sample",
        })?;
        episode.turn(seen, &sequence.tokens, &logprobs);
        let outcome = env.act(&sequence.tokens).await.map_err(failed)?;
        let done = outcome.done;
        episode.earn(outcome);
        usable(episode.reward)?;
        if done {
            break;
        }
    }
    episode.messages = env.transcript();
    Ok(episode)
}

/// Makes a seed of a seed and a number, so that neighbours have nothing in common.
pub(super) fn mix(seed: u64, number: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    rng.u64(..)
}
