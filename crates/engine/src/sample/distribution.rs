//! From logits to a token: temperature, top-k, top-p, and log-probabilities.
//!
//! ```text
//! w_i  = exp((z_i − max z) / T)                      weight of token i
//! lp_i = (z_i − max z) / T − ln Σ_j w_j              its reported log-probability
//! ```
//!
//! A token is drawn by inverting the cumulative sum of the weights, in a fixed order, over the tokens that
//! survive the cuts:
//!
//! - min-p keeps the tokens whose weight is at least that part of the largest one;
//! - top-k then keeps the `k` largest logits, ties going to lower ids;
//! - top-p then keeps the fewest of those, largest first, whose weights reach `p` times their sum.
//!
//! Temperature 0 takes the largest logit, ties going to the lowest id.
//!
//! Log-probabilities are those of the distribution *before* the cuts, scaled by the temperature. At
//! temperature 0, where that distribution is a single point, they are the model's own (`T = 1`).
//!
//! Everything runs in a fixed order and in time linear in the vocabulary; nothing is sorted but what is
//! reported in order.

use std::cmp::Ordering;

use crate::Error;
use crate::kernels::softmax;

/// Tokens whose weights are summed first; the sums of blocks find the block of a draw quickly.
const BLOCK: usize = 256;

/// Tokens that a nucleus is looked for in before it is looked for in all of them.
const FIRST_LOOK: usize = 64;

/// How to draw a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    /// Divisor of the logits; 0 takes the largest.
    pub(crate) temperature: f32,
    /// How many of the largest logits to keep, if not all.
    pub(crate) top_k: Option<usize>,
    /// Share of the weight to keep; 1 keeps everything.
    pub(crate) top_p: f64,
    /// Part of the largest weight that a token needs to be kept; 0 keeps everything.
    pub(crate) min_p: f32,
}

impl Rule {
    /// Draws in proportion to the weights at this temperature, without cuts.
    pub(crate) fn uncut(temperature: f32) -> Self {
        Self {
            temperature,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

/// The soft-max of a row of logits.
///
/// It borrows its weights from a [`DistributionScratch`], so that a row costs no allocation.
#[derive(Debug)]
pub(crate) struct Distribution<'a> {
    logits: &'a [f32],
    scratch: &'a mut DistributionScratch,
    max: f32,
    /// Inverse of the temperature.
    scale: f32,
    greedy: bool,
    ln_sum: f64,
}

/// Buffers that live longer than one row.
#[derive(Debug, Default)]
pub(crate) struct DistributionScratch {
    weights: Vec<f32>,
    block_sums: Vec<f64>,
    candidates: Vec<u32>,
    /// Logits that are not the model's own.
    adjusted: Vec<f32>,
}

impl DistributionScratch {
    /// Lends an empty buffer for logits, which should be [put back](Self::put_adjusted).
    pub(crate) fn take_adjusted(&mut self) -> Vec<f32> {
        self.adjusted.clear();
        std::mem::take(&mut self.adjusted)
    }

    pub(crate) fn put_adjusted(&mut self, adjusted: Vec<f32>) {
        self.adjusted = adjusted;
    }
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
        scratch: &'a mut DistributionScratch,
    ) -> Result<Self, Error> {
        let greedy = temperature == 0.0;
        let temperature = if greedy { 1.0 } else { temperature };
        let max = softmax::max(logits);
        let scale = 1.0 / temperature;
        let weights = &mut scratch.weights;
        weights.clear();
        weights.extend_from_slice(logits);
        let sum = softmax::exp_in_place(weights, scale, max);
        if !sum.is_finite() || !max.is_finite() {
            return Err(non_finite(logits));
        }
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
        if rule.min_p > 0.0 {
            // The largest weight is 1.
            self.drop_weights(|_, weight| weight < rule.min_p);
        }
        let top_k = rule.top_k.filter(|&k| k < self.logits.len());
        if top_k.is_none() && rule.top_p >= 1.0 {
            return self.draw_from_all(uniform);
        }
        self.cut(top_k, rule.top_p);
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

    /// Gives no weight at all to tokens whose logit is negative infinity. Without it they would have the tiny
    /// one of the fast `exp`.
    pub(crate) fn drop_impossible(&mut self) {
        self.drop_weights(|logit, _| logit == f32::NEG_INFINITY);
    }

    fn drop_weights(&mut self, drops: impl Fn(f32, f32) -> bool) {
        for (logit, weight) in self.logits.iter().zip(&mut self.scratch.weights) {
            if drops(*logit, *weight) {
                *weight = 0.0;
            }
        }
    }

    fn largest(&self) -> u32 {
        let position = self.logits.iter().position(|&z| z == self.max);
        position.expect("the maximum is one of them") as u32
    }

    fn draw_from_all(&mut self, uniform: f64) -> u32 {
        let DistributionScratch {
            weights,
            block_sums,
            ..
        } = &mut *self.scratch;
        block_sums.clear();
        block_sums.extend(weights.chunks(BLOCK).map(|block| f64::from(sum(block))));
        let mut rest = uniform * block_sums.iter().sum::<f64>();
        let mut block = 0;
        while block + 1 < block_sums.len() && rest >= block_sums[block] {
            rest -= block_sums[block];
            block += 1;
        }
        let start = block * BLOCK;
        let weights = weights[start..].iter().take(BLOCK).copied();
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
        let DistributionScratch {
            weights,
            candidates,
            ..
        } = &mut *self.scratch;
        // Without top-k, the nucleus is probably among a few tokens, which are found much faster.
        largest_logits(self.logits, top_k.unwrap_or(FIRST_LOOK), candidates);
        if top_p >= 1.0 {
            return;
        }
        let among_candidates = weight_of(candidates, weights);
        let target = match top_k {
            Some(_) => top_p * among_candidates,
            None => {
                top_p
                    * weights
                        .chunks(BLOCK)
                        .map(|block| f64::from(sum(block)))
                        .sum::<f64>()
            }
        };
        if top_k.is_none() && among_candidates < target {
            largest_logits(self.logits, self.logits.len(), candidates);
        }
        let kept = nucleus(candidates, target, self.logits, weights);
        candidates.truncate(kept);
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

/// Moves to the front the fewest tokens, largest logits first, whose weights reach `target`, and returns
/// their number: at least one.
///
/// Halves the tokens again and again, and goes on with the half in which the sum is reached, which takes
/// linear time in all.
fn nucleus(tokens: &mut [u32], target: f64, logits: &[f32], weights: &[f32]) -> usize {
    let mut kept = 0;
    let mut missing = target;
    let mut rest = tokens;
    while rest.len() > 1 {
        let half = rest.len() / 2;
        rest.select_nth_unstable_by(half - 1, |&a, &b| by_logit(logits, a, b));
        let (larger, smaller) = rest.split_at_mut(half);
        let sum = weight_of(larger, weights);
        if sum >= missing {
            rest = larger;
        } else {
            missing -= sum;
            kept += half;
            rest = smaller;
        }
    }
    kept + 1
}

fn weight_of(tokens: &[u32], weights: &[f32]) -> f64 {
    tokens
        .iter()
        .map(|&token| f64::from(weights[token as usize]))
        .sum()
}

/// Sums a block in lanes, which the compiler keeps in registers.
fn sum(block: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (chunks, rest) = block.as_chunks::<16>();
    for chunk in chunks {
        for (lane, weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight;
        }
    }
    lanes.iter().chain(rest).sum()
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
