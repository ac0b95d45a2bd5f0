//! A step's episodes as data to train on.

use super::advantage::Baseline;
use super::episode::{Episode, Sequence};
use super::rollout::Group;
use crate::Error;
use crate::run::Numbers;
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use tinkrs::{Datum, ForwardBackwardOutput, SamplingClient};

/// A model to stay close to: the base model, or a teacher.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Says how likely the model finds what was written.
    pub sampler: SamplingClient,
    /// How much each nat of difference counts.
    pub weight: f64,
}

impl Reference {
    /// Returns, for each token of a sequence, how much likelier the reference found it than the
    /// sampler did; 0 for tokens that were only seen.
    async fn differences(&self, sequence: &Sequence) -> Result<Vec<f32>, Error> {
        let theirs = self
            .sampler
            .compute_logprobs(sequence.tokens.clone())
            .await?;
        if theirs.len() != sequence.tokens.len() {
            return Err(Error::Missing {
                what: "log-probability of each token",
            });
        }
        let difference =
            |(ours, theirs): (&Option<f32>, f32)| ours.map_or(0.0, |ours| theirs - ours);
        Ok(sequence
            .written
            .iter()
            .zip(theirs)
            .map(difference)
            .collect())
    }
}

/// Data to train on, and numbers about the episodes that it comes from.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) datums: Vec<Datum>,
    /// For each datum, what it was made of.
    pub(super) sequences: Vec<Sequence>,
    pub(super) numbers: Numbers,
}

impl Batch {
    /// Weighs what was written in some groups.
    ///
    /// What a token gains by being likelier to the reference counts less the batch's mean: that
    /// changes nothing on average, and takes most of the noise away. An episode without any
    /// advantage teaches nothing and is left out.
    pub(super) async fn new(
        groups: Vec<Group>,
        baseline: Baseline,
        reference: Option<&Reference>,
    ) -> Result<Self, Error> {
        let mut numbers = numbers(&groups);
        let mut weighed: Vec<(Sequence, f64)> = Vec::new();
        for group in groups {
            let rewards: Vec<f64> = group.iter().map(|episode| episode.reward).collect();
            for (episode, advantage) in group.into_iter().zip(baseline.advantages(&rewards)) {
                weighed.extend(
                    episode
                        .sequences
                        .into_iter()
                        .map(|sequence| (sequence, advantage)),
                );
            }
        }
        let (weight, differences) = match reference {
            None => {
                weighed.retain(|(_, advantage)| *advantage != 0.0);
                (0.0, vec![Vec::new(); weighed.len()])
            }
            Some(reference) => {
                let ask = weighed
                    .iter()
                    .map(|(sequence, _)| reference.differences(sequence));
                (reference.weight, try_join_all(ask).await?)
            }
        };
        let written: usize = weighed
            .iter()
            .map(|(sequence, _)| sequence.written_tokens())
            .sum();
        let all: f64 = differences
            .iter()
            .flatten()
            .map(|difference| f64::from(*difference))
            .sum();
        let mean = all / written.max(1) as f64;
        if reference.is_some() {
            numbers.insert("kl_reference".to_owned(), -mean);
        }
        let mut batch = Self {
            datums: Vec::with_capacity(weighed.len()),
            sequences: Vec::with_capacity(weighed.len()),
            numbers,
        };
        for ((sequence, advantage), differences) in weighed.into_iter().zip(differences) {
            let gain = |place: usize| match differences.get(place) {
                Some(difference) => weight * (f64::from(*difference) - mean),
                None => 0.0,
            };
            batch
                .datums
                .push(sequence.to_datum(|place| (advantage + gain(place)) as f32)?);
            batch.sequences.push(sequence);
        }
        Ok(batch)
    }
}

fn numbers(groups: &[Group]) -> Numbers {
    let episodes = || groups.iter().flatten();
    let count = episodes().count().max(1) as f64;
    let written: usize = episodes().map(Episode::written_tokens).sum();
    let tokens = || episodes().flat_map(|episode| &episode.sequences);
    let logprobs = tokens().flat_map(|sequence| sequence.written.iter().flatten());
    let surprise: f64 = logprobs.map(|logprob| -f64::from(*logprob)).sum();
    let agree = |group: &&Group| {
        group
            .windows(2)
            .all(|pair| pair[0].reward == pair[1].reward)
    };
    let mean_reward = episodes().map(|episode| episode.reward).sum::<f64>() / count;
    let turns: usize = episodes().map(|episode| episode.turns).sum();
    let cut_short = episodes().filter(|episode| episode.cut_short).count();
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (name, number) in episodes().flat_map(|episode| &episode.metrics) {
        let (sum, count) = sums.entry(name).or_default();
        (*sum, *count) = (*sum + number, *count + 1.0);
    }
    let told = sums.into_iter();
    let told = told.map(|(name, (sum, count))| (format!("env/{name}"), sum / count));
    let ours = [
        ("turns_per_episode".to_owned(), turns as f64 / count),
        ("episodes_cut_short".to_owned(), cut_short as f64),
        ("reward".to_owned(), mean_reward),
        ("groups".to_owned(), groups.len() as f64),
        (
            "groups_without_signal".to_owned(),
            groups.iter().filter(agree).count() as f64,
        ),
        (
            "written_tokens_per_episode".to_owned(),
            written as f64 / count,
        ),
        // The sampler's surprise at its own draws is an estimate of its entropy.
        ("entropy".to_owned(), surprise / written.max(1) as f64),
        (
            "tokens".to_owned(),
            tokens()
                .map(|sequence| sequence.tokens.len())
                .sum::<usize>() as f64,
        ),
    ];
    ours.into_iter().chain(told).collect()
}

/// Estimates how far the trainer is from the sampler, in nats a token: the mean of
/// `log q - log p` over tokens drawn from `q`. With equal weights it is what rounding and
/// different kernels make; more means stale weights, or a fault.
pub fn sampler_trainer_kl(sequences: &[Sequence], output: &ForwardBackwardOutput) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for (index, sequence) in sequences.iter().enumerate() {
        let trainer = output.logprobs(index)?;
        for (ours, theirs) in sequence.written.iter().skip(1).zip(trainer) {
            if let Some(ours) = ours {
                sum += f64::from(*ours) - f64::from(*theirs);
                count += 1;
            }
        }
    }
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episode(reward: f64) -> Episode {
        let mut episode = Episode::default();
        episode.turn(vec![1], &[2, 3], &[-0.5, -1.5]);
        episode.reward = reward;
        episode
    }

    #[tokio::test]
    async fn groups_that_agree_are_counted_and_left_out() {
        let groups = vec![
            vec![episode(1.0), episode(0.0)],
            vec![episode(1.0), episode(1.0)],
        ];
        let batch = Batch::new(groups, Baseline::GroupMean, None).await.unwrap();
        assert_eq!(batch.datums.len(), 2);
        assert_eq!(batch.numbers["reward"], 0.75);
        assert_eq!(batch.numbers["groups_without_signal"], 1.0);
        assert_eq!(batch.numbers["entropy"], 1.0);
        let advantages = batch.datums[0].loss_fn_inputs()["advantages"]
            .as_f32()
            .unwrap();
        assert_eq!(advantages, [0.5, 0.5]);
    }
}
