//! Loss functions: from the log-probabilities of one datum to a loss and its gradient.
//!
//! Every loss is a pure function of the learner's log-probabilities `lp_i` of one datum and of the
//! tensors that came with it. It returns the loss, `dloss/dlp_i`, and metrics; the model turns
//! `dloss/dlp_i` into gradients of the adapter. The functions see flat slices, so a position with
//! one target and a position with `K` candidate targets look the same to them.
//!
//! Rules shared by all of them:
//!
//! - A loss is a plain sum over tokens. Nothing is averaged, over tokens or over datums.
//! - `weights` multiplies the loss of each token, in every loss; a missing one counts as all ones.
//! - A position whose weight is zero, or (in the policy losses) whose advantage is zero, contributes
//!   exactly 0, whatever its log-probabilities are: it is left out, not multiplied by zero. Prompt
//!   tokens are marked that way, and carry meaningless sampler log-probabilities.
//! - Everywhere else non-finite numbers are an error that names the tensor and the position.
//! - Sums are kept in f64 and run in token order.
//!
//! Metric names end in `:sum`, `:mean` or `:max`, which says how they combine over datums and, at
//! the client, over requests (see [`Metrics`]). All losses report `loss:sum`; the policy losses add
//!
//! | name | meaning, over the contributing tokens of a datum |
//! | --- | --- |
//! | `ratio:mean`, `ratio:max` | `r_i = exp(lp_i − q_i)`, with `q_i` the sampler's log-probability |
//! | `kl_sampler:mean` | `r_i − 1 − ln r_i`, an estimate of `KL(sampler ‖ learner)` that is never negative |
//! | `clip_fraction:mean` | share of tokens whose ratio was outside the bounds (clipped losses only) |
//!
//! A datum without contributing tokens counts as an unchanged policy: ratio 1, divergence 0.

mod cispo;
mod cross_entropy;
pub(crate) mod custom;
mod datum;
mod dro;
mod gspo;
mod importance_sampling;
mod inputs;
mod metrics;
mod ppo;

use tinkrs_types::protocol::key;
use tinkrs_types::{InvalidInput, LossFn};

use crate::Error;

pub use cispo::cispo;
pub use cross_entropy::cross_entropy;
pub use custom::{CustomLoss, CustomOutput, Objective};
pub use datum::LossTensors;
pub use dro::dro;
pub use gspo::gspo;
pub use importance_sampling::importance_sampling;
pub use inputs::LossInputs;
pub use metrics::{MetricTotals, Metrics};
pub use ppo::ppo;

/// A loss together with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// Weighted negative log-likelihood; see [`cross_entropy`].
    CrossEntropy,
    /// Policy gradient with an importance ratio; see [`importance_sampling`].
    ImportanceSampling,
    /// Clipped surrogate; see [`ppo`].
    Ppo(RatioRange),
    /// Policy gradient with a clipped, constant importance ratio; see [`cispo`].
    Cispo(RatioRange),
    /// Policy gradient with a quadratic penalty; see [`dro`].
    Dro {
        /// Strength of the penalty.
        beta: f64,
    },
    /// Clipped surrogate with one ratio a sequence; see [`gspo`].
    Gspo(RatioRange),
}

impl Loss {
    /// Fills in the defaults of a request's loss, and checks its settings.
    ///
    /// # Errors
    ///
    /// A loss that the engine does not have, `dro` without `beta`, or a setting out of range.
    pub fn new(loss: &LossFn) -> Result<Self, Error> {
        Ok(match loss {
            LossFn::CrossEntropy => Self::CrossEntropy,
            LossFn::ImportanceSampling => Self::ImportanceSampling,
            LossFn::Ppo(bounds) => Self::Ppo(RatioRange::PPO.overridden(bounds)?),
            LossFn::Cispo(bounds) => Self::Cispo(RatioRange::CISPO.overridden(bounds)?),
            LossFn::Gspo(bounds) => Self::Gspo(RatioRange::PPO.overridden(bounds)?),
            LossFn::Dro { beta } => match beta {
                Some(beta) if beta.is_finite() => Self::Dro { beta: *beta },
                Some(beta) => {
                    let error = InvalidInput::new("loss_fn_config.beta", beta, "a finite number");
                    return Err(error.into());
                }
                None => {
                    let allowed = "a number: `dro` has no default";
                    let error = InvalidInput::new("loss_fn_config.beta", "nothing", allowed);
                    return Err(error.into());
                }
            },
            other => {
                let allowed = "cross_entropy, importance_sampling, ppo, cispo, dro, gspo or custom";
                return Err(InvalidInput::new("loss_fn", other.name(), allowed).into());
            }
        })
    }

    /// Lists the tensors besides the targets that the loss reads.
    fn inputs(&self) -> &'static [&'static str] {
        const POLICY: [&str; 3] = [key::WEIGHTS, key::LOGPROBS, key::ADVANTAGES];
        const CLIPPED: [&str; 5] = [
            key::WEIGHTS,
            key::LOGPROBS,
            key::ADVANTAGES,
            key::CLIP_LOW_THRESHOLD,
            key::CLIP_HIGH_THRESHOLD,
        ];
        const SEQUENCE: [&str; 6] = [
            key::WEIGHTS,
            key::LOGPROBS,
            key::ADVANTAGES,
            key::CLIP_LOW_THRESHOLD,
            key::CLIP_HIGH_THRESHOLD,
            key::SEQUENCE_RATIO_MASK,
        ];
        match self {
            Self::CrossEntropy => &[key::WEIGHTS],
            Self::ImportanceSampling | Self::Dro { .. } => &POLICY,
            Self::Ppo(_) | Self::Cispo(_) => &CLIPPED,
            Self::Gspo(_) => &SEQUENCE,
        }
    }

    /// Whether a position may have several candidate targets.
    fn takes_candidates(&self) -> bool {
        !matches!(self, Self::Gspo(_))
    }

    /// Returns `dloss/dlp_i` of one datum if the loss knows them without the log-probabilities.
    ///
    /// The head then goes forward and back in one visit instead of two.
    pub(crate) fn slopes_without_logprobs(
        &self,
        inputs: &LossInputs<'_>,
        targets: usize,
    ) -> Option<Vec<f32>> {
        match self {
            Self::CrossEntropy => Some(cross_entropy::slopes(inputs.weights, targets)),
            Self::ImportanceSampling
            | Self::Ppo(_)
            | Self::Cispo(_)
            | Self::Dro { .. }
            | Self::Gspo(_) => None,
        }
    }

    /// Evaluates the loss of one datum.
    ///
    /// `lp` holds the learner's log-probabilities of the datum's targets, flat.
    ///
    /// # Errors
    ///
    /// A missing tensor, a tensor of the wrong length, or a non-finite number at a position that
    /// contributes; the message names the tensor and the position.
    pub fn evaluate(&self, lp: &[f32], inputs: &LossInputs<'_>) -> Result<LossOutput, Error> {
        match *self {
            Self::CrossEntropy => cross_entropy(lp, inputs),
            Self::ImportanceSampling => importance_sampling(lp, inputs),
            Self::Ppo(bounds) => ppo(lp, inputs, bounds),
            Self::Cispo(bounds) => cispo(lp, inputs, bounds),
            Self::Dro { beta } => dro(lp, inputs, beta),
            Self::Gspo(bounds) => gspo(lp, inputs, bounds),
        }
    }
}

/// Bounds on the importance ratio itself, not distances from one: those of a request's
/// [`ClipBounds`](tinkrs_types::training::ClipBounds), with defaults where it sets none.
///
/// The tensors `clip_low_threshold` and `clip_high_threshold` of a datum override them token by token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioRange {
    /// Least ratio that is not clipped.
    pub low: f64,
    /// Greatest ratio that is not clipped.
    pub high: f64,
}

impl RatioRange {
    /// The default of [`ppo`], and, for want of a documented one, of [`gspo`]: 0.8 and 1.2.
    pub const PPO: Self = Self {
        low: 0.8,
        high: 1.2,
    };
    /// The default of [`cispo`]: 0.0 and 4.0.
    pub const CISPO: Self = Self {
        low: 0.0,
        high: 4.0,
    };

    fn overridden(self, by: &tinkrs_types::training::ClipBounds) -> Result<Self, InvalidInput> {
        let bounds = Self {
            low: by.low.unwrap_or(self.low),
            high: by.high.unwrap_or(self.high),
        };
        // Written so that NaN is refused as well.
        if bounds.low <= bounds.high {
            return Ok(bounds);
        }
        let allowed = format!(
            "a number up to clip_high_threshold, which is {}",
            bounds.high
        );
        Err(InvalidInput::new(
            "loss_fn_config.clip_low_threshold",
            bounds.low,
            allowed,
        ))
    }

    fn contains(self, ratio: f64) -> bool {
        self.low <= ratio && ratio <= self.high
    }

    fn clamp(self, ratio: f64) -> f64 {
        ratio.max(self.low).min(self.high)
    }
}

/// What a loss function returns for one datum.
#[derive(Clone, Debug, PartialEq)]
pub struct LossOutput {
    /// The loss: the sum over the datum's tokens.
    pub loss: f64,
    /// `dloss/dlp_i`, one for each target.
    pub gradient: Vec<f32>,
    /// `loss:sum` and what else the loss reports.
    pub metrics: Metrics,
}

/// One token's share of a loss: its value, and its derivative by the token's log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Term {
    value: f64,
    slope: f64,
    /// Whether the ratio was outside its bounds.
    clipped: bool,
}

#[cfg(test)]
mod tests;
