//! How surprised a model is by text.

use crate::Error;
use futures_util::future::try_join_all;
use tinkrs::{Datum, SamplingClient, TrainingClient};
use tinkrs_chat::Example;

/// Returns the mean negative log-likelihood of the tokens that count, under the model's present
/// weights. Gradients are not touched.
///
/// # Errors
/// If nothing counts, or the server fails.
pub async fn mean_nll(training: &TrainingClient, examples: &[Example]) -> Result<f64, Error> {
    let datums = examples
        .iter()
        .map(Example::to_datum)
        .collect::<Result<Vec<Datum>, _>>()?;
    let weights: Vec<_> = examples.iter().map(target_weights).collect();
    let all = weights.iter().copied().flatten();
    let weight: f64 = all.map(|weight| f64::from(*weight)).sum();
    if weight <= 0.0 {
        return Err(Error::setting("eval data", "no token in it counts"));
    }
    let output = training.forward(datums).await?;
    let loss = output.loss_with_weights(&weights);
    Ok(loss.ok_or(Error::Missing { what: "loss" })?.value / weight)
}

/// Returns how much each target counts: the first token is no target.
pub(crate) fn target_weights(example: &Example) -> &[f32] {
    example.weights.get(1..).unwrap_or_default()
}

/// How surprised a model is by examples, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Surprise {
    /// The sum over the tokens that count, by how much they count.
    pub nats: f64,
    /// How much counts: the number of tokens, unless some have a weight of their own.
    pub weight: f64,
}

impl Surprise {
    /// Returns the mean for a token.
    pub fn mean(&self) -> f64 {
        self.nats / self.weight
    }
}

/// Returns how surprised whatever a sampler samples from is by each example, all asked for at the
/// same time. Needs no training client, so it works for base models and sampler checkpoints.
///
/// # Errors
/// If the server fails.
pub async fn surprise(
    sampler: &SamplingClient,
    examples: &[Example],
) -> Result<Vec<Surprise>, Error> {
    let ask = |example: &Example| {
        let (logprobs, weights) = (
            sampler.compute_logprobs(example.tokens.clone()),
            example.weights.clone(),
        );
        async move {
            let logprobs = logprobs.await?;
            if logprobs.len() != weights.len() {
                return Err(Error::Missing {
                    what: "log-probability of each token",
                });
            }
            // The first token has no prediction.
            let counted = || {
                logprobs
                    .iter()
                    .zip(&weights)
                    .skip(1)
                    .filter(|(_, w)| **w != 0.0)
            };
            let nats = counted().map(|(logprob, w)| -f64::from(*logprob) * f64::from(*w));
            Ok(Surprise {
                nats: nats.sum(),
                weight: counted().map(|(_, w)| f64::from(*w)).sum(),
            })
        }
    };
    try_join_all(examples.iter().map(ask)).await
}
