//! The tensors of a datum, and the checks they go through once.

use super::{LossOutput, Metrics, RatioRange, Term};
use crate::Error;

/// The tensors that a datum brings along, by their names in the request. All are flat.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossInputs<'a> {
    /// Index of the datum in its request, for error messages.
    pub datum: usize,
    /// Factor of each token's loss; all ones when missing.
    pub weights: Option<&'a [f32]>,
    /// The sampler's log-probabilities, `q_i`.
    pub logprobs: Option<&'a [f32]>,
    /// Advantages, `A_i`.
    pub advantages: Option<&'a [f32]>,
    /// Lower clip bound of each token, instead of the configured one.
    pub clip_low_threshold: Option<&'a [f32]>,
    /// Upper clip bound of each token, instead of the configured one.
    pub clip_high_threshold: Option<&'a [f32]>,
    /// Non-zero where a token counts towards the sequence's ratio.
    pub sequence_ratio_mask: Option<&'a [f32]>,
}

impl<'a> LossInputs<'a> {
    /// Checks that a tensor is there and as long as the targets.
    pub(super) fn required(
        &self,
        name: &str,
        tensor: Option<&'a [f32]>,
        targets: usize,
    ) -> Result<&'a [f32], Error> {
        self.sized(name, tensor, targets)?
            .ok_or_else(|| self.missing(name))
    }

    /// Checks a tensor's length, and that all of it is finite.
    pub(super) fn finite(
        &self,
        name: &str,
        tensor: Option<&'a [f32]>,
        targets: usize,
    ) -> Result<Option<&'a [f32]>, Error> {
        let tensor = self.sized(name, tensor, targets)?;
        if let Some(values) = tensor {
            for i in 0..values.len() {
                finite_at(self.datum, name, values, i)?;
            }
        }
        Ok(tensor)
    }

    fn sized(
        &self,
        name: &str,
        tensor: Option<&'a [f32]>,
        targets: usize,
    ) -> Result<Option<&'a [f32]>, Error> {
        match tensor {
            Some(values) if values.len() != targets => Err(Error::InputShape {
                datum: self.datum,
                input: name.to_owned(),
                expected: vec![targets],
                got: vec![values.len()],
            }),
            tensor => Ok(tensor),
        }
    }

    fn missing(&self, name: &str) -> Error {
        Error::Input {
            datum: self.datum,
            input: name.to_owned(),
            reason: "is missing".to_owned(),
        }
    }
}

/// One contributing token of a policy loss; all its numbers are finite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) lp: f64,
    pub(super) q: f64,
    pub(super) advantage: f64,
}

impl Token {
    pub(super) fn ratio(self) -> f64 {
        (self.lp - self.q).exp()
    }
}

/// Checked inputs of a policy loss.
pub(super) struct PolicyInputs<'a> {
    datum: usize,
    lp: &'a [f32],
    weights: Option<&'a [f32]>,
    logprobs: &'a [f32],
    advantages: &'a [f32],
    clip_low: Option<&'a [f32]>,
    clip_high: Option<&'a [f32]>,
}

impl<'a> PolicyInputs<'a> {
    pub(super) fn new(lp: &'a [f32], inputs: &LossInputs<'a>) -> Result<Self, Error> {
        Ok(Self {
            datum: inputs.datum,
            lp,
            weights: inputs.finite("weights", inputs.weights, lp.len())?,
            logprobs: inputs.required("logprobs", inputs.logprobs, lp.len())?,
            advantages: inputs
                .finite("advantages", inputs.advantages, lp.len())?
                .ok_or_else(|| inputs.missing("advantages"))?,
            clip_low: inputs.sized("clip_low_threshold", inputs.clip_low_threshold, lp.len())?,
            clip_high: inputs.sized("clip_high_threshold", inputs.clip_high_threshold, lp.len())?,
        })
    }

    /// Sums a loss given as the term of one token, whose weight is applied here.
    ///
    /// `term` receives a token and its clip bounds, and is called only for tokens that contribute.
    /// `bounds` is `None` for losses that do not clip.
    pub(super) fn sum(
        &self,
        bounds: Option<RatioRange>,
        term: impl Fn(Token, RatioRange) -> Term,
    ) -> Result<LossOutput, Error> {
        let mut loss = 0.0;
        let mut gradient = vec![0.0; self.lp.len()];
        let mut policy = PolicyMetrics::default();
        for (i, gradient) in gradient.iter_mut().enumerate() {
            let weight = self.weights.map_or(1.0, |weights| f64::from(weights[i]));
            let Some(token) = self.token(i, weight)? else {
                continue;
            };
            let token_bounds = self.bounds(i, bounds)?;
            let Term {
                value,
                slope,
                clipped,
            } = term(token, token_bounds);
            loss += weight * value;
            *gradient = (weight * slope) as f32;
            policy.add(token, clipped);
        }
        let metrics = policy.finish(loss, bounds.is_some());
        Ok(LossOutput {
            loss,
            gradient,
            metrics,
        })
    }

    fn token(&self, i: usize, weight: f64) -> Result<Option<Token>, Error> {
        let advantage = f64::from(self.advantages[i]);
        if weight == 0.0 || advantage == 0.0 {
            return Ok(None);
        }
        let lp = finite_at(self.datum, "model log-probability", self.lp, i)?;
        let q = finite_at(self.datum, "logprobs", self.logprobs, i)?;
        Ok(Some(Token { lp, q, advantage }))
    }

    fn bounds(&self, i: usize, configured: Option<RatioRange>) -> Result<RatioRange, Error> {
        let Some(configured) = configured else {
            return Ok(RatioRange {
                low: 0.0,
                high: f64::INFINITY,
            });
        };
        let bounds = RatioRange {
            low: self
                .clip_low
                .map_or(configured.low, |low| f64::from(low[i])),
            high: self
                .clip_high
                .map_or(configured.high, |high| f64::from(high[i])),
        };
        // Written so that a NaN bound is refused as well.
        if bounds.low <= bounds.high {
            return Ok(bounds);
        }
        Err(Error::Input {
            datum: self.datum,
            input: "clip_low_threshold".to_owned(),
            reason: format!(
                "is {} at position {i}, not below the upper bound {}",
                bounds.low, bounds.high
            ),
        })
    }

    /// Returns the mean of `lp_i − q_i` over the positions where `mask` is not zero.
    pub(super) fn mean_log_ratio(&self, mask: &[f32]) -> Result<Option<f64>, Error> {
        let mut sum = 0.0;
        let mut count = 0_usize;
        for i in (0..mask.len()).filter(|&i| mask[i] != 0.0) {
            let lp = finite_at(self.datum, "model log-probability", self.lp, i)?;
            sum += lp - finite_at(self.datum, "logprobs", self.logprobs, i)?;
            count += 1;
        }
        Ok((count > 0).then(|| sum / count as f64))
    }

    pub(super) fn contributes(&self) -> bool {
        (0..self.lp.len()).any(|i| {
            self.advantages[i] != 0.0 && self.weights.is_none_or(|weights| weights[i] != 0.0)
        })
    }
}

#[derive(Default)]
struct PolicyMetrics {
    tokens: usize,
    clipped: usize,
    ratio_sum: f64,
    ratio_max: f64,
    divergence_sum: f64,
}

impl PolicyMetrics {
    fn add(&mut self, token: Token, clipped: bool) {
        let log_ratio = token.lp - token.q;
        let ratio = log_ratio.exp();
        self.tokens += 1;
        self.clipped += usize::from(clipped);
        self.ratio_sum += ratio;
        self.ratio_max = self.ratio_max.max(ratio);
        // `exp_m1` keeps the digits that `ratio − 1` loses near one.
        self.divergence_sum += log_ratio.exp_m1() - log_ratio;
    }

    fn finish(self, loss: f64, clips: bool) -> Metrics {
        let per_token = |sum: f64, of_none: f64| match self.tokens {
            0 => of_none,
            tokens => sum / tokens as f64,
        };
        let mut metrics = Metrics::default();
        metrics.push("loss:sum", loss);
        metrics.push("ratio:mean", per_token(self.ratio_sum, 1.0));
        metrics.push(
            "ratio:max",
            if self.tokens == 0 {
                1.0
            } else {
                self.ratio_max
            },
        );
        metrics.push("kl_sampler:mean", per_token(self.divergence_sum, 0.0));
        if clips {
            metrics.push("clip_fraction:mean", per_token(self.clipped as f64, 0.0));
        }
        metrics
    }
}

pub(super) fn finite_at(datum: usize, what: &str, values: &[f32], i: usize) -> Result<f64, Error> {
    let value = values[i];
    if value.is_finite() {
        return Ok(f64::from(value));
    }
    Err(Error::NonFiniteDatum {
        datum,
        position: i,
        what: what.to_owned(),
        value,
    })
}
