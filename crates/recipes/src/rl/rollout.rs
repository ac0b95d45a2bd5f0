//! Playing episodes with a sampler.

use super::env::Problem;
use super::episode::Episode;
use crate::Error;
use futures_util::future::try_join_all;
use std::sync::Arc;
use tinkrs::{BoxError, SamplingClient, SamplingParams};

/// Episodes from one problem, which are compared with each other.
pub type Group = Vec<Episode>;

/// Plays a group of episodes of each problem, all at the same time.
///
/// With a seed, the same sampler plays the same episodes again, on servers whose draws are
/// repeatable.
///
/// # Errors
/// If an environment or the server fails.
pub async fn play(
    sampler: &SamplingClient,
    problems: &[Arc<dyn Problem>],
    group_size: usize,
    seed: Option<u64>,
) -> Result<Vec<Group>, Error> {
    let group = |(index, problem): (usize, &Arc<dyn Problem>)| {
        let seed = move |member: usize| Some(mix(mix(seed?, index as u64), member as u64));
        let members =
            (0..group_size).map(|member| episode(sampler, Arc::clone(problem), seed(member)));
        try_join_all(members.collect::<Vec<_>>())
    };
    try_join_all(problems.iter().enumerate().map(group)).await
}

/// Plays one episode to its end.
async fn episode(
    sampler: &SamplingClient,
    problem: Arc<dyn Problem>,
    seed: Option<u64>,
) -> Result<Episode, Error> {
    let failed = |source: BoxError| Error::Caller {
        what: "an environment or its judge",
        source,
    };
    let mut env = problem.start().map_err(failed)?;
    let mut episode = Episode::default();
    for turn in 0_u64.. {
        let seen = env.observe().map_err(failed)?;
        let params = SamplingParams {
            // Not every server takes more than 32 bits with a sign.
            seed: seed.map(|seed| (mix(seed, turn) >> 33) as i64),
            ..problem.params()
        };
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
        let outcome = env.act(&sequence.tokens).map_err(failed)?;
        episode.reward += outcome.reward;
        if outcome.done {
            break;
        }
    }
    episode.reward += env.judge().await.map_err(failed)?;
    Ok(episode)
}

/// Makes a seed of a seed and a number, so that neighbours have nothing in common.
pub(super) fn mix(seed: u64, number: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    rng.u64(..)
}
