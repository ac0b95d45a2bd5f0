//! From hidden states to log-probabilities of targets, and back, a block of rows at a time.
//!
//! ```text
//! z = ĥ Wᵀ (+ s (ĥ Aᵀ) Bᵀ)      lp_j = z_{t_j} − lse(z)          ĥ = norm(h)
//! dz_v = Σ_j g_j ([v = t_j] − p_v)      p_v = exp(z_v − lse)      dĥ = dz W (+ …)
//! ```
//!
//! where `g_j` is the derivative of the loss by `lp_j`. Scores exist for one block of rows only. When a
//! loss knows its derivatives before it has seen the log-probabilities (cross-entropy does), a block goes
//! both ways at once; other losses visit the rows that matter a second time.

use rayon::prelude::*;

use super::Model;
use super::backward::Gradients;
use super::linear::add_pairs;
use super::workspace::sized;
use crate::adapter::Adapter;
use crate::kernels::gemm::{Start, outer, project, project_back};
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::softmax;

/// Scores held at once: 16 MiB.
const SCORES: usize = 1 << 22;

/// Targets of all rows of a batch.
pub(crate) struct Targets {
    /// Target tokens, row by row.
    pub(crate) tokens: Vec<u32>,
    /// Where each row's targets start, and the end.
    pub(crate) starts: Vec<usize>,
}

impl Targets {
    fn of(&self, row: usize) -> std::ops::Range<usize> {
        self.starts[row]..self.starts[row + 1]
    }

    fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns a row's log-probabilities and, if slopes are given, turns its scores into gradients.
    fn score(
        &self,
        row: &mut [f32],
        index: usize,
        slopes: Option<&[f32]>,
        softcap: Option<f32>,
    ) -> Vec<f32> {
        let range = self.of(index);
        let targets = &self.tokens[range.clone()];
        if let Some(cap) = softcap {
            softmax::cap(row, 1.0, cap);
        }
        let lse = softmax::log_sum_exp(row);
        let logprobs: Vec<f32> = targets
            .iter()
            .map(|&token| row[token as usize] - lse)
            .collect();
        if let Some(slopes) = slopes {
            let slopes = &slopes[range];
            let factor = -slopes.iter().sum::<f32>();
            let Some(cap) = softcap else {
                softmax::score_gradient(row, lse, factor);
                for (&token, &slope) in targets.iter().zip(slopes) {
                    row[token as usize] += slope;
                }
                return logprobs;
            };
            // Through the bound, whose derivative is 1 − (z / cap)².
            let through = |&token: &u32| 1.0 - (row[token as usize] / cap).powi(2);
            let through: Vec<f32> = targets.iter().map(through).collect();
            softmax::capped_score_gradient(row, lse, factor, cap);
            for ((&token, &slope), through) in targets.iter().zip(slopes).zip(through) {
                row[token as usize] += slope * through;
            }
        }
        logprobs
    }
}

/// The head's pass over one batch.
pub(crate) struct Head<'a> {
    model: &'a Model,
    adapter: Option<&'a Adapter>,
    targets: &'a Targets,
    /// Output of the last block.
    last: &'a [f32],
    normed: Vec<f32>,
    logits: &'a mut Vec<f32>,
}

impl<'a> Head<'a> {
    pub(crate) fn new(
        model: &'a Model,
        adapter: Option<&'a Adapter>,
        targets: &'a Targets,
        last: &'a [f32],
        logits: &'a mut Vec<f32>,
    ) -> Self {
        let mut normed = Vec::new();
        model.final_norm.forward(last, &mut normed);
        Self {
            model,
            adapter,
            targets,
            last,
            normed,
            logits,
        }
    }

    /// Computes the log-probabilities of all targets.
    pub(crate) fn forward(&mut self) -> Vec<f32> {
        let mut logprobs = vec![0.0; self.targets.tokens.len()];
        let rows: Vec<usize> = (0..self.targets.rows()).collect();
        self.visit(&rows, None, &mut logprobs);
        logprobs
    }

    /// Computes the gradient of the last block's output, given `dloss/dlp` of each target. Rows without
    /// a gradient are left out. `logprobs`, if wanted, are computed on the way for all rows.
    pub(crate) fn backward(
        &mut self,
        slopes: &[f32],
        gradients: &mut Gradients<'_>,
        logprobs: Option<&mut Vec<f32>>,
    ) -> Vec<f32> {
        let live = |&row: &usize| slopes[self.targets.of(row)].iter().any(|&g| g != 0.0);
        let (with, without): (Vec<usize>, Vec<usize>) = (0..self.targets.rows()).partition(live);
        let mut own = Vec::new();
        let wanted = logprobs.is_some();
        let logprobs = logprobs.unwrap_or(&mut own);
        logprobs.resize(self.targets.tokens.len(), 0.0);
        if wanted {
            self.visit(&without, None, logprobs);
        }
        let mut d_normed = vec![0.0; self.last.len()];
        let back = Back {
            slopes,
            gradients,
            d_normed: &mut d_normed,
        };
        self.visit(&with, Some(back), logprobs);

        let mut d_last = vec![0.0; self.last.len()];
        self.model
            .final_norm
            .backward(self.last, &d_normed, &mut d_last, gradients);
        d_last
    }

    /// Goes through some rows in order, block by block, forward and, if asked, back.
    fn visit(&mut self, rows: &[usize], mut back: Option<Back<'_, '_>>, logprobs: &mut [f32]) {
        let (hidden, vocab) = (self.model.config.hidden, self.model.config.vocab);
        let site = self.model.table.head_site();
        let pair = self.adapter.and_then(|adapter| adapter.pair(site));
        let (mut x, mut u, mut d_u, mut d_x) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for block in rows.chunks((SCORES / vocab).clamp(96, 240)) {
            let count = block.len();
            x.clear();
            for &row in block {
                x.extend_from_slice(&self.normed[row * hidden..(row + 1) * hidden]);
            }
            let x = Mat::new(&x, count, hidden);
            let logits = sized(self.logits, count * vocab);
            project(
                x,
                &[self.model.head_panels()],
                MatMut::new(logits, count, vocab),
                Start::Zero,
            );
            if let Some(pair) = pair {
                add_pairs(x, &[(0, pair)], logits, vocab, &mut u);
            }
            let softcap = self.model.final_softcap();
            let (targets, slopes) = (self.targets, back.as_ref().map(|back| back.slopes));
            let results: Vec<Vec<f32>> = logits
                .par_chunks_exact_mut(vocab)
                .zip(block)
                .map(|(row, &index)| targets.score(row, index, slopes, softcap))
                .collect();
            for (&row, found) in block.iter().zip(results) {
                logprobs[self.targets.of(row)].copy_from_slice(&found);
            }
            let Some(back) = &mut back else { continue };

            let dz = Mat::new(self.logits, count, vocab);
            let d_x = sized(&mut d_x, count * hidden);
            project_back(
                dz,
                self.model.head_panels(),
                MatMut::new(d_x, count, hidden),
                Start::Zero,
            );
            if let Some(pair) = pair {
                let inner = pair.down.outputs();
                let d_u = sized(&mut d_u, count * inner);
                project(
                    dz,
                    &[&pair.up_back],
                    MatMut::new(d_u, count, inner),
                    Start::Zero,
                );
                let d_u = Mat::new(d_u, count, inner);
                project(
                    d_u,
                    &[&pair.down_back],
                    MatMut::new(d_x, count, hidden),
                    Start::Keep,
                );
                back.gradients
                    .pair(site, x, Mat::new(&u, count, inner), dz, d_u);
            }
            if let Some(slot) = back.gradients.slots.head {
                outer(
                    dz,
                    x,
                    MatMut::new(&mut back.gradients.values[slot], vocab, hidden),
                );
            }
            for (&row, d_x) in block.iter().zip(d_x.chunks_exact(hidden)) {
                back.d_normed[row * hidden..(row + 1) * hidden].copy_from_slice(d_x);
            }
        }
    }
}

impl Model {
    /// The bound of the head's scores, if the model has one.
    pub(crate) fn final_softcap(&self) -> Option<f32> {
        self.config.features.final_softcap.map(|cap| cap as f32)
    }
}

struct Back<'b, 'g> {
    slopes: &'b [f32],
    gradients: &'b mut Gradients<'g>,
    d_normed: &'b mut [f32],
}
