//! From logits to a token: temperature, top-k, top-p, and log-probabilities.
//!
//! ```text
//! w_i  = exp((z_i − max z) / T)                      weight of token i
//! lp_i = (z_i − max z) / T − ln Σ_j w_j              its reported log-probability
//! ```
//!
//! A token is drawn by inverting the cumulative sum of the weights, in the order of token ids, over the
//! tokens that survive the cuts:
//!
//! - top-k keeps the `k` largest logits, ties going to lower ids;
//! - top-p then keeps the fewest of those, largest first, whose weights reach `p` times their sum.
//!
//! Temperature 0 takes the largest logit, ties going to the lowest id.
//!
//! Log-probabilities are those of the distribution *before* the cuts, scaled by the temperature. At
//! temperature 0, where that distribution is a single point, they are the model's own (`T = 1`).
//!
//! Everything runs in a fixed order and in time linear in the vocabulary, except that a nucleus sorts
//! the tokens it looks at, which is few of them unless the distribution is flat.

use std::cmp::Ordering;

use crate::Error;
use crate::kernels::softmax;

/// Tokens whose weights are summed first; the sums of blocks find the block of a draw quickly.
const BLOCK: usize = 256;

/// How to draw a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    /// Divisor of the logits; 0 takes the largest.
    pub(crate) temperature: f32,
    /// How many of the largest logits to keep, if not all.
    pub(crate) top_k: Option<usize>,
    /// Share of the weight to keep; 1 keeps everything.
    pub(crate) top_p: f64,
}

impl Rule {
    /// Draws in proportion to the weights at this temperature, without cuts.
    pub(crate) fn uncut(temperature: f32) -> Self {
        Self {
            temperature,
            top_k: None,
            top_p: 1.0,
        }
    }
}

/// The soft-max of a row of logits.
///
/// It borrows its weights from a [`Scratch`], so that a row costs no allocation.
#[derive(Debug)]
pub(crate) struct Distribution<'a> {
    logits: &'a [f32],
    scratch: &'a mut Scratch,
    max: f32,
    /// Inverse of the temperature.
    scale: f32,
    greedy: bool,
    ln_sum: f64,
}

/// Buffers that live longer than one row.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    weights: Vec<f32>,
    block_sums: Vec<f64>,
    candidates: Vec<u32>,
}

impl<'a> Distribution<'a> {
    /// Computes the weights of a row of logits.
    ///
    /// # Errors
    ///
    /// A logit that is infinite or not a number.
    pub(crate) fn new(
        logits: &'a [f32],
        temperature: f32,
        scratch: &'a mut Scratch,
    ) -> Result<Self, Error> {
        let greedy = temperature == 0.0;
        let temperature = if greedy { 1.0 } else { temperature };
        let max = softmax::max(logits);
        let scale = 1.0 / temperature;
        let Scratch {
            weights,
            block_sums,
            ..
        } = &mut *scratch;
        weights.clear();
        weights.extend_from_slice(logits);
        let sum = softmax::exp_in_place(weights, scale, max);
        if !sum.is_finite() || !max.is_finite() {
            return Err(non_finite(logits));
        }
        block_sums.clear();
        let blocks = weights.chunks(BLOCK);
        block_sums.extend(blocks.map(|block| block.iter().map(|&w| f64::from(w)).sum::<f64>()));
        Ok(Self {
            logits,
            scratch,
            max,
            scale,
            greedy,
            ln_sum: f64::from(sum).ln(),
        })
    }

    /// Returns the log-probability of a token.
    pub(crate) fn logprob(&self, token: u32) -> f32 {
        let logit = self.logits[token as usize];
        if self.scale == 1.0 {
            // The operations of the training pass, in its order: the two agree to the last bit.
            logit - (f64::from(self.max) + self.ln_sum) as f32
        } else {
            let scaled = f64::from(logit - self.max) * f64::from(self.scale);
            (scaled - self.ln_sum) as f32
        }
    }

    /// Draws a token; `uniform` is a random number strictly between 0 and 1.
    pub(crate) fn draw(&mut self, rule: &Rule, uniform: f64) -> u32 {
        if self.greedy {
            return self.largest();
        }
        let top_k = rule.top_k.filter(|&k| k < self.logits.len());
        if top_k.is_none() && rule.top_p >= 1.0 {
            return self.draw_from_all(uniform);
        }
        self.cut(top_k, rule.top_p);
        self.scratch.candidates.sort_unstable();
        self.draw_from_candidates(uniform)
    }

    /// Appends the `k` likeliest tokens and their log-probabilities, likeliest first.
    ///
    /// Of fewer than `k` tokens in the vocabulary, all are appended.
    pub(crate) fn likeliest(&mut self, k: usize, tokens: &mut Vec<u32>, logprobs: &mut Vec<f32>) {
        largest_logits(self.logits, k, &mut self.scratch.candidates);
        self.sort_candidates();
        for &token in &self.scratch.candidates {
            tokens.push(token);
            logprobs.push(self.logprob(token));
        }
    }

    fn largest(&self) -> u32 {
        let position = self.logits.iter().position(|&z| z == self.max);
        position.expect("the maximum is one of them") as u32
    }

    fn draw_from_all(&self, uniform: f64) -> u32 {
        let sums = &self.scratch.block_sums;
        let mut rest = uniform * sums.iter().sum::<f64>();
        let mut block = 0;
        while block + 1 < sums.len() && rest >= sums[block] {
            rest -= sums[block];
            block += 1;
        }
        // Rounding may have led past the last block with any weight.
        while sums[block] == 0.0 {
            block -= 1;
        }
        let start = block * BLOCK;
        let weights = self.scratch.weights[start..].iter().take(BLOCK).copied();
        start as u32 + invert(weights, rest)
    }

    fn draw_from_candidates(&self, uniform: f64) -> u32 {
        let candidates = &self.scratch.candidates;
        let weights = || {
            candidates
                .iter()
                .map(|&token| self.scratch.weights[token as usize])
        };
        let sum: f64 = weights().map(f64::from).sum();
        candidates[invert(weights(), uniform * sum) as usize]
    }

    /// Leaves in `candidates` the tokens that survive top-k and top-p.
    fn cut(&mut self, top_k: Option<usize>, top_p: f64) {
        let limit = top_k.unwrap_or(self.logits.len());
        if top_p >= 1.0 {
            largest_logits(self.logits, limit, &mut self.scratch.candidates);
            return;
        }
        // Without top-k the nucleus is a share of everything, and probably few tokens: look at the
        // largest 64, and at eight times as many whenever that was not enough.
        let mut looked_at = if top_k.is_some() {
            limit
        } else {
            limit.min(64)
        };
        loop {
            largest_logits(self.logits, looked_at, &mut self.scratch.candidates);
            self.sort_candidates();
            let weights = &self.scratch.weights;
            let weight = |&token: &u32| f64::from(weights[token as usize]);
            let sum = match top_k {
                Some(_) => self.scratch.candidates.iter().map(weight).sum(),
                None => self.scratch.block_sums.iter().sum::<f64>(),
            };
            let mut reached = 0.0;
            let enough = self.scratch.candidates.iter().position(|token| {
                reached += weight(token);
                reached >= top_p * sum
            });
            match enough {
                Some(last) => return self.scratch.candidates.truncate(last + 1),
                None if looked_at == limit => return,
                None => looked_at = (looked_at * 8).min(limit),
            }
        }
    }

    fn sort_candidates(&mut self) {
        let logits = self.logits;
        self.scratch
            .candidates
            .sort_unstable_by(|&a, &b| by_logit(logits, a, b));
    }
}

/// Orders tokens by falling logit, ties by rising id.
fn by_logit(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize]
        .total_cmp(&logits[a as usize])
        .then(a.cmp(&b))
}

/// Collects the `k` largest logits' tokens, in no particular order, in linear time.
///
/// A buffer of twice `k` tokens is cut back to the best `k` whenever it is full; most tokens fall below
/// the worst of those and are not looked at again.
fn largest_logits(logits: &[f32], k: usize, tokens: &mut Vec<u32>) {
    tokens.clear();
    if k >= logits.len() {
        tokens.extend(0..logits.len() as u32);
        return;
    }
    if k == 0 {
        return;
    }
    let keep_best = |tokens: &mut Vec<u32>| {
        tokens.select_nth_unstable_by(k - 1, |&a, &b| by_logit(logits, a, b));
        tokens.truncate(k);
        logits[tokens[k - 1] as usize]
    };
    let capacity = (2 * k).max(64);
    let mut threshold = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        // A tie with the threshold loses, because the tokens kept so far have lower ids.
        if tokens.len() >= k && logit <= threshold {
            continue;
        }
        tokens.push(token as u32);
        if tokens.len() == capacity {
            threshold = keep_best(tokens);
        }
    }
    if tokens.len() > k {
        keep_best(tokens);
    }
}

/// Returns the first index at which the running sum of `weights` exceeds `target`.
///
/// Rounding can leave the target at the very end; the last index with any weight is returned then.
fn invert(weights: impl Iterator<Item = f32>, target: f64) -> u32 {
    let mut sum = 0.0;
    let mut last = 0;
    for (index, weight) in weights.enumerate() {
        if weight > 0.0 {
            sum += f64::from(weight);
            last = index as u32;
            if sum > target {
                break;
            }
        }
    }
    last
}

fn non_finite(logits: &[f32]) -> Error {
    let bad = logits.iter().enumerate().find(|(_, z)| !z.is_finite());
    let (index, value) = bad.map_or((0, f32::NEG_INFINITY), |(index, &value)| (index, value));
    Error::NonFiniteTensor {
        operation: "sample",
        tensor: "logits".to_owned(),
        index,
        value,
    }
}

#[cfg(test)]
mod tests;
