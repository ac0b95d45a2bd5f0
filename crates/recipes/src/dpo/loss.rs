//! The loss of direct preference optimization.
//!
//! ```text
//! z = β · ((log p(chosen) − log p₀(chosen)) − (log p(rejected) − log p₀(rejected)))
//! L = Σ −log σ(z)          dL/dlog p(chosen) = −β·σ(−z)          dL/dlog p(rejected) = β·σ(−z)
//! ```
//!
//! `p₀` is the model before training, and `log p` of an answer is the sum over its tokens.

use tinkrs::training::CustomLoss;

/// The log-probability and the weight of each target token of an answer.
pub(super) struct Answer<'a> {
    pub(super) logprobs: &'a [f32],
    pub(super) weights: &'a [f32],
    /// The answer's log-probability before training.
    pub(super) reference: f64,
}

impl Answer<'_> {
    fn log_ratio(&self) -> f64 {
        weighted_sum(self.logprobs, self.weights) - self.reference
    }

    fn gradient(&self, slope: f64) -> Vec<f32> {
        self.weights
            .iter()
            .map(|weight| (slope * f64::from(*weight)) as f32)
            .collect()
    }
}

pub(super) fn weighted_sum(logprobs: &[f32], weights: &[f32]) -> f64 {
    let terms = logprobs
        .iter()
        .zip(weights)
        .filter(|(_, weight)| **weight != 0.0);
    terms
        .map(|(logprob, weight)| f64::from(*logprob) * f64::from(*weight))
        .sum()
}

/// Computes the loss of pairs `(chosen, rejected)`, with gradients in the order chosen, rejected,
/// chosen, …
pub(super) fn dpo_loss(pairs: &[(Answer<'_>, Answer<'_>)], beta: f64) -> CustomLoss {
    let (mut loss, mut right, mut margins) = (0.0, 0.0, 0.0);
    let mut gradients = Vec::with_capacity(2 * pairs.len());
    for (chosen, rejected) in pairs {
        let z = beta * (chosen.log_ratio() - rejected.log_ratio());
        // −log σ(z), in the form that does not overflow.
        loss += (-z).max(0.0) + (-z.abs()).exp().ln_1p();
        let slope = beta / (1.0 + z.exp());
        gradients.push(chosen.gradient(-slope));
        gradients.push(rejected.gradient(slope));
        right += f64::from(u8::from(z > 0.0));
        margins += z;
    }
    let count = pairs.len().max(1) as f64;
    CustomLoss::new(loss, gradients)
        .metric("accuracy:mean", right / count)
        .metric("margin:mean", margins / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss_of(chosen: &[f32], rejected: &[f32]) -> CustomLoss {
        let answer = |logprobs, weights, reference| Answer {
            logprobs,
            weights,
            reference,
        };
        let pair = (
            answer(chosen, &[0.0, 1.0, 1.0][..], -2.0),
            answer(rejected, &[1.0, 0.5][..], -1.5),
        );
        dpo_loss(&[pair], 0.7)
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let (chosen, rejected) = ([-9.0, -0.5, -1.25], [-0.75, -2.0]);
        let analytic = loss_of(&chosen, &rejected).gradients;
        let h = 1.0 / 128.0;
        for which in 0..2 {
            for index in 0..[3, 2][which] {
                let at = |change: f32| {
                    let (mut chosen, mut rejected) = (chosen, rejected);
                    match which {
                        0 => chosen[index] += change,
                        _ => rejected[index] += change,
                    }
                    loss_of(&chosen, &rejected).loss
                };
                let numeric = (at(h) - at(-h)) / (2.0 * f64::from(h));
                let found = f64::from(analytic[which][index]);
                assert!(
                    (numeric - found).abs() < 1e-5,
                    "{which}, {index}: {numeric} and {found}"
                );
            }
        }
    }

    #[test]
    fn a_model_that_has_not_moved_loses_log_two() {
        let loss = loss_of(&[0.0, -1.0, -1.0], &[-1.0, -1.0]);
        assert!((loss.loss - std::f64::consts::LN_2).abs() < 1e-12);
        assert_eq!(loss.metrics["accuracy:mean"], 0.0);
        let far = loss_of(&[0.0, -9e4, -9e4], &[-1.0, -1.0]);
        assert!(far.loss.is_finite() && far.gradients[0].iter().all(|g| g.is_finite()));
    }
}
