//! A step's episodes as data to train on.

use super::advantage::Baseline;
use super::episode::{Episode, Sequence};
use super::rollout::Group;
use crate::Error;
use crate::run::Numbers;
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use tinkrs::{Datum, ForwardBackwardOutput, SamplingClient};

/// What a model is kept close to, or learns from: one model for all problems, or several, each for some of them.
#[derive(Clone, Debug)]
pub struct Reference {
    samplers: Vec<SamplingClient>,
    /// For each problem, which of them; the first one for all, if there is nothing.
    of_problem: Vec<usize>,
    weight: f64,
    discount: f64,
}

impl Reference {
    /// A model for all problems, where each nat of difference counts so much.
    pub fn new(sampler: SamplingClient, weight: f64) -> Self {
        Self {
            samplers: vec![sampler],
            of_problem: Vec::new(),
            weight,
            discount: 0.0,
        }
    }

    /// Several models; `of_problem` says for each problem which of them it has.
    ///
    /// # Errors
    /// If a problem has one that is not there.
    pub fn of_problems(
        samplers: Vec<SamplingClient>,
        of_problem: Vec<usize>,
        weight: f64,
    ) -> Result<Self, Error> {
        let count = samplers.len();
        if let Some(wrong) = of_problem.iter().find(|index| **index >= count) {
            let problem = format!("model {wrong} of a problem, but there are {count}");
            return Err(Error::setting("reference", problem));
        }
        Ok(Self {
            samplers,
            of_problem,
            weight,
            discount: 0.0,
        })
    }

    /// Lets each token also count for what the later ones of its sequence gain, less by this factor a token.
    #[must_use]
    pub fn discounted(mut self, discount: f64) -> Self {
        self.discount = discount;
        self
    }

    /// Refuses a reference that does not know all of so many problems.
    pub(super) fn check(&self, problems: usize) -> Result<(), Error> {
        let known = self.of_problem.len();
        if self.samplers.is_empty() || !(known == 0 || known == problems) {
            let problem = format!("models for {known} of {problems} problems");
            return Err(Error::setting("reference", problem));
        }
        Ok(())
    }

    fn sampler(&self, problem: usize) -> &SamplingClient {
        let index = self.of_problem.get(problem).copied().unwrap_or(0);
        &self.samplers[index]
    }

    /// Returns, for each token of a sequence, how much likelier the reference found it than the
    /// sampler did; 0 for tokens that were only seen.
    async fn differences(&self, problem: usize, sequence: &Sequence) -> Result<Vec<f32>, Error> {
        let sampler = self.sampler(problem);
        let theirs = sampler.compute_logprobs(sequence.tokens.clone()).await?;
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

    /// Returns what each token of a sequence gains by being likelier to the reference, less the batch's mean.
    fn gains(&self, sequence: &Sequence, differences: &[f32], mean: f64) -> Vec<f64> {
        let mut gains = vec![0.0; sequence.tokens.len()];
        let mut later = 0.0;
        for (place, difference) in differences.iter().enumerate().rev() {
            if sequence.written[place].is_some() {
                let gain = self.weight * (f64::from(*difference) - mean);
                later = gain + self.discount * later;
                gains[place] = later;
            }
        }
        gains
    }
}

/// How episodes are weighed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighing<'r> {
    pub(super) baseline: Baseline,
    pub(super) reference: Option<&'r Reference>,
    /// Whether the loss wants to know which tokens make the ratio of a sequence.
    pub(super) mask: bool,
}

/// Data to train on.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) datums: Vec<Datum>,
    /// For each datum, what it was made of.
    pub(super) sequences: Vec<Sequence>,
    /// How far the sampler is from the reference, in nats, and over how many tokens.
    pub(super) reference_gap: (f64, usize),
}

impl Batch {
    /// Weighs what was written in some groups, each of one of the `problems`.
    ///
    /// What a token gains by being likelier to the reference counts less the batch's mean: that
    /// changes nothing on average, and takes most of the noise away. An episode without any
    /// advantage teaches nothing and is left out.
    pub(super) async fn new(
        groups: &[Group],
        problems: &[usize],
        weighing: Weighing<'_>,
    ) -> Result<Self, Error> {
        let mut weighed: Vec<(usize, &Sequence, f64)> = Vec::new();
        for (group, problem) in groups.iter().zip(problems) {
            let rewards: Vec<f64> = group.iter().map(|episode| episode.reward).collect();
            let advantages = weighing.baseline.advantages(&rewards);
            for (episode, advantage) in group.iter().zip(advantages) {
                let sequences = episode.sequences.iter();
                weighed.extend(sequences.map(|sequence| (*problem, sequence, advantage)));
            }
        }
        let differences = match weighing.reference {
            None => {
                weighed.retain(|(_, _, advantage)| *advantage != 0.0);
                Vec::new()
            }
            Some(reference) => {
                let ask = weighed
                    .iter()
                    .map(|(problem, sequence, _)| reference.differences(*problem, sequence));
                try_join_all(ask).await?
            }
        };
        let written: usize = weighed
            .iter()
            .map(|(_, sequence, _)| sequence.written_tokens())
            .sum();
        let all: f64 = differences
            .iter()
            .flatten()
            .map(|difference| f64::from(*difference))
            .sum();
        let mean = all / written.max(1) as f64;
        let mut batch = Self {
            datums: Vec::with_capacity(weighed.len()),
            sequences: Vec::with_capacity(weighed.len()),
            reference_gap: match weighing.reference {
                Some(_) => (-all, written),
                None => (0.0, 0),
            },
        };
        for (index, (_, sequence, advantage)) in weighed.into_iter().enumerate() {
            let gains = match weighing.reference {
                Some(reference) => reference.gains(sequence, &differences[index], mean),
                None => vec![0.0; sequence.tokens.len()],
            };
            let mut datum = sequence.to_datum(|place| (advantage + gains[place]) as f32)?;
            if weighing.mask {
                datum = datum.with_input(SEQUENCE_RATIO_MASK, sequence.mask())?;
            }
            batch.datums.push(datum);
            batch.sequences.push(sequence.clone());
        }
        Ok(batch)
    }
}

/// The tensor that says which tokens make the ratio of a sequence.
const SEQUENCE_RATIO_MASK: &str = "sequence_ratio_mask";

/// Returns what the groups of a step tell.
pub(super) fn numbers(groups: &[Group]) -> Numbers {
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
    let (sum, count) = sampler_trainer_gap(sequences, output)?;
    (count > 0).then(|| sum / count as f64)
}

/// Returns the sum of `log q - log p` over the tokens that were drawn, and how many those are.
pub(super) fn sampler_trainer_gap(
    sequences: &[Sequence],
    output: &ForwardBackwardOutput,
) -> Option<(f64, usize)> {
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
    Some((sum, count))
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
        let weighing = Weighing {
            baseline: Baseline::GroupMean,
            reference: None,
            mask: true,
        };
        let batch = Batch::new(&groups, &[0, 1], weighing).await.unwrap();
        assert_eq!(batch.datums.len(), 2);
        let numbers = numbers(&groups);
        assert_eq!(numbers["reward"], 0.75);
        assert_eq!(numbers["groups_without_signal"], 1.0);
        assert_eq!(numbers["entropy"], 1.0);
        let mask = batch.datums[0].loss_fn_inputs()[SEQUENCE_RATIO_MASK].as_f32();
        assert_eq!(mask.unwrap(), [1.0, 1.0]);
        let advantages = batch.datums[0].loss_fn_inputs()["advantages"]
            .as_f32()
            .unwrap();
        assert_eq!(advantages, [0.5, 0.5]);
    }

    #[test]
    fn a_discount_lets_tokens_count_for_what_follows_them() {
        let mut episode = Episode::default();
        episode.turn(vec![1], &[2, 3], &[-0.5, -1.5]);
        episode.turn(vec![1, 2, 3, 4], &[5], &[-1.0]);
        let sequence = &episode.sequences[0];
        // Of the five tokens, 2, 3 and 5 were written.
        let differences = [0.0, 1.0, -2.0, 0.0, 4.0];
        let reference = |discount| Reference {
            samplers: Vec::new(),
            of_problem: Vec::new(),
            weight: 0.5,
            discount,
        };
        let gains = reference(0.0).gains(sequence, &differences, 1.0);
        assert_eq!(gains, [0.0, 0.0, -1.5, 0.0, 1.5]);
        let gains = reference(0.5).gains(sequence, &differences, 1.0);
        assert_eq!(gains, [0.0, -0.375, -0.75, 0.0, 1.5]);
        assert!(reference(0.0).check(3).is_err(), "there is no model");
    }
}
