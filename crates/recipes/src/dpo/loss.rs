//! The losses of preferences.
//!
//! ```text
//! h = (log p(chosen) − log p₀(chosen)) − (log p(rejected) − log p₀(rejected))
//! DPO: L = Σ −log σ(β·h)            dL/dh = −β·σ(−β·h)
//! IPO: L = Σ (h − 1/(2β))²          dL/dh = 2·(h − 1/(2β))
//! ```
//!
//! `p₀` is the reference, and `log p` of an answer is the sum over its tokens. DPO is content only when `h` is
//! infinite; IPO wants it to be `1/(2β)`, so that pairs which never contradict each other are not driven further
//! and further.

use crate::Error;
use serde::{Deserialize, Serialize};
use tinkrs::training::CustomLoss;

/// Which loss preferences are learned with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum PreferenceLoss {
    /// Direct preference optimization: the chosen answer is to be as likely as can be, in comparison.
    #[default]
    Dpo,
    /// Identity preference optimization: the chosen answer is to be likelier by `1/(2β)` nats, in comparison, and
    /// not by more.
    Ipo,
}

/// A loss with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Objective {
    pub(super) loss: PreferenceLoss,
    pub(super) beta: f64,
}

impl Objective {
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.beta > 0.0 && self.beta.is_finite() {
            return Ok(());
        }
        let problem = format!("{}, expected a positive number", self.beta);
        Err(Error::setting("beta", problem))
    }

    /// Returns the loss of a pair and its derivative, by `h`.
    fn of(&self, h: f64) -> (f64, f64) {
        let beta = self.beta;
        match self.loss {
            PreferenceLoss::Dpo => {
                let z = beta * h;
                // −log σ(z), in the form that does not overflow.
                let loss = (-z).max(0.0) + (-z.abs()).exp().ln_1p();
                (loss, -beta / (1.0 + z.exp()))
            }
            PreferenceLoss::Ipo => {
                let off = h - 1.0 / (2.0 * beta);
                (off * off, 2.0 * off)
            }
        }
    }
}

/// The log-probability and the weight of each target token of an answer.
pub(super) struct Answer<'a> {
    pub(super) logprobs: &'a [f32],
    pub(super) weights: &'a [f32],
    /// The answer's log-probability to the reference.
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
pub(super) fn preference_loss(
    pairs: &[(Answer<'_>, Answer<'_>)],
    objective: Objective,
) -> CustomLoss {
    let (mut loss, mut right, mut margins) = (0.0, 0.0, 0.0);
    let mut gradients = Vec::with_capacity(2 * pairs.len());
    for (chosen, rejected) in pairs {
        let h = chosen.log_ratio() - rejected.log_ratio();
        let (of_pair, slope) = objective.of(h);
        loss += of_pair;
        gradients.push(chosen.gradient(slope));
        gradients.push(rejected.gradient(-slope));
        right += f64::from(u8::from(h > 0.0));
        margins += objective.beta * h;
    }
    let count = pairs.len().max(1) as f64;
    CustomLoss::new(loss, gradients)
        .metric("accuracy:mean", right / count)
        .metric("margin:mean", margins / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss_of(loss: PreferenceLoss, chosen: &[f32], rejected: &[f32]) -> CustomLoss {
        let answer = |logprobs, weights, reference| Answer {
            logprobs,
            weights,
            reference,
        };
        let pair = (
            answer(chosen, &[0.0, 1.0, 1.0][..], -2.0),
            answer(rejected, &[1.0, 0.5][..], -1.5),
        );
        preference_loss(&[pair], Objective { loss, beta: 0.7 })
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let (chosen, rejected) = ([-9.0, -0.5, -1.25], [-0.75, -2.0]);
        let h = 1.0 / 128.0;
        for loss in [PreferenceLoss::Dpo, PreferenceLoss::Ipo] {
            let analytic = loss_of(loss, &chosen, &rejected).gradients;
            for which in 0..2 {
                for index in 0..[3, 2][which] {
                    let at = |change: f32| {
                        let (mut chosen, mut rejected) = (chosen, rejected);
                        match which {
                            0 => chosen[index] += change,
                            _ => rejected[index] += change,
                        }
                        loss_of(loss, &chosen, &rejected).loss
                    };
                    let numeric = (at(h) - at(-h)) / (2.0 * f64::from(h));
                    let found = f64::from(analytic[which][index]);
                    assert!(
                        (numeric - found).abs() < 1e-5,
                        "{loss:?}, {which}, {index}: {numeric} and {found}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_model_that_has_not_moved_loses_log_two() {
        let dpo = PreferenceLoss::Dpo;
        let loss = loss_of(dpo, &[0.0, -1.0, -1.0], &[-1.0, -1.0]);
        assert!((loss.loss - std::f64::consts::LN_2).abs() < 1e-12);
        assert_eq!(loss.metrics["accuracy:mean"], 0.0);
        let far = loss_of(dpo, &[0.0, -9e4, -9e4], &[-1.0, -1.0]);
        assert!(far.loss.is_finite() && far.gradients[0].iter().all(|g| g.is_finite()));
    }

    #[test]
    fn ipo_wants_half_a_nat_over_beta_and_no_more() {
        let objective = Objective {
            loss: PreferenceLoss::Ipo,
            beta: 0.25,
        };
        assert_eq!(objective.of(0.0), (4.0, -4.0));
        assert_eq!(objective.of(2.0), (0.0, 0.0));
        assert_eq!(objective.of(3.0), (1.0, 2.0), "too far is wrong, too");
    }
}
