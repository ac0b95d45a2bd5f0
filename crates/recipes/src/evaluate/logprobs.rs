//! Whether the sampler and the trainer are the same model.
//!
//! Reinforcement learning divides the trainer's probabilities by the sampler's. If the two
//! disagree about the same weights, every step is off: by a little where kernels or precisions
//! differ, by a lot where a checkpoint, a prompt or a temperature is not what it seems. This
//! draws some text and asks both about it.

use crate::Error;
use tinkrs::{Datum, SamplingParams, TrainingClient};

/// How much the sampler and the trainer differ, in nats a token.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LogprobCheck {
    /// How many tokens were compared.
    pub tokens: usize,
    /// The mean of `log q_sampler - log p_trainer`: an estimate of their divergence.
    pub kl: f64,
    /// The mean of the absolute difference.
    pub mean_difference: f64,
    /// The largest absolute difference, and the place to look for a fault.
    pub largest_difference: f64,
}

/// Draws `max_tokens` tokens after each prompt and compares what the sampler says of them with
/// what the trainer says. Gradients are not touched.
///
/// # Errors
/// If there is nothing to compare, or the server fails.
pub async fn check_logprobs(
    training: &TrainingClient,
    prompts: &[Vec<u32>],
    max_tokens: u32,
    seed: i64,
) -> Result<LogprobCheck, Error> {
    let sampler = training.save_weights_and_get_sampling_client().await?;
    let (mut datums, mut drawn) = (Vec::new(), Vec::new());
    for (index, prompt) in prompts.iter().enumerate() {
        let params = SamplingParams {
            seed: Some(seed.wrapping_add(index as i64)),
            ..SamplingParams::new(max_tokens)
        };
        let output = sampler.sample(prompt.clone(), params).await?;
        let sequence = output.sequences.into_iter().next();
        let sequence = sequence.ok_or(Error::Missing { what: "sequence" })?;
        datums.push(Datum::from_prompt_completion(prompt, &sequence.tokens)?);
        let missing = Error::Missing {
            what: "log-probabilities of a sample",
        };
        drawn.push(sequence.logprobs.ok_or(missing)?);
    }
    let output = training.forward(datums).await?;
    let mut differences = Vec::new();
    for (index, (sampled, prompt)) in drawn.iter().zip(prompts).enumerate() {
        let missing = Error::Missing {
            what: "log-probabilities of a pass",
        };
        let trainer = output.logprobs(index).ok_or(missing)?;
        // The target at position `i` is token `i + 1`.
        let written = trainer.iter().skip(prompt.len().saturating_sub(1));
        let pairs = sampled.iter().zip(written);
        differences.extend(pairs.map(|(q, p)| f64::from(*q) - f64::from(*p)));
    }
    summarize(&differences).ok_or(Error::Missing {
        what: "token to compare",
    })
}

fn summarize(differences: &[f64]) -> Option<LogprobCheck> {
    let tokens = differences.len();
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / tokens as f64;
    (tokens > 0).then(|| LogprobCheck {
        tokens,
        kl: mean(&mut differences.iter().copied()),
        mean_difference: mean(&mut differences.iter().map(|difference| difference.abs())),
        largest_difference: differences.iter().fold(0.0, |most, d| d.abs().max(most)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_summed_up() {
        let check = summarize(&[0.5, -1.5]).unwrap();
        assert_eq!((check.tokens, check.kl), (2, -0.5));
        assert_eq!(
            (check.mean_difference, check.largest_difference),
            (1.0, 1.5)
        );
        assert_eq!(summarize(&[]), None);
    }
}
