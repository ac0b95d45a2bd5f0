//! The way back through a layer with a state, step by step.

use rayon::prelude::*;

use super::{
    DeltaAttention, DeltaAttentionBuffers, DeltaAttentionKept, SCRATCH, inverse_length, sigmoid,
    silu, silu_slope,
};
use crate::kernels::delta;
use crate::kernels::matrix::MatMut;
use crate::kernels::norm;
use crate::kernels::shared::for_each_part;
use crate::kernels::softmax::dot;
use crate::model::attention::Past;
use crate::model::backward::Gradients;
use crate::model::rows::{Rows, rows_per_task};
use crate::model::workspace::sized;

impl DeltaAttention {
    /// From `d_gated` to `d_core`, and to the gates' part of `d_mixed`.
    pub(super) fn gate_backward(
        &self,
        kept: &DeltaAttentionKept,
        buffers: &mut DeltaAttentionBuffers,
        gradients: &mut Gradients<'_>,
    ) {
        let (channels, values) = (self.shape.channels(), self.shape.values());
        let (d, width) = (self.shape.value_dim, kept.mixed.width());
        sized(&mut buffers.d_core, kept.core.values.len()).fill(0.0);
        let mixed = kept.mixed.values.par_chunks_exact(width);
        let core = kept.core.values.par_chunks_exact(values);
        buffers
            .d_mixed
            .par_chunks_exact_mut(width)
            .zip(buffers.d_gated.par_chunks_exact_mut(values))
            .zip(buffers.d_core.par_chunks_exact_mut(values))
            .zip(mixed.zip(core))
            .for_each_init(
                Vec::new,
                |normed, (((d_mixed, dy), d_core), (mixed, core))| {
                    sized(normed, values);
                    for (to, core) in normed.chunks_exact_mut(d).zip(core.chunks_exact(d)) {
                        self.norm.forward_row(core, to);
                    }
                    for i in 0..values {
                        let z = mixed[channels + i];
                        d_mixed[channels + i] = dy[i] * normed[i] * silu_slope(z);
                        dy[i] *= silu(z);
                    }
                    let heads = d_core.chunks_exact_mut(d).zip(core.chunks_exact(d));
                    for ((dx, x), dy) in heads.zip(dy.chunks_exact(d)) {
                        norm::backward(x, &self.norm.weight, self.norm.eps, dy, dx);
                    }
                },
            );
        // What is left in `d_gated` is the gradient of the norm's output.
        if let Some(sums) = gradients.tensor(self.norm.key) {
            let heads = kept.core.values.chunks_exact(d);
            for (x, dy) in heads.zip(buffers.d_gated.chunks_exact(d)) {
                norm::backward_weight(x, self.norm.eps, dy, sums);
            }
        }
    }

    /// From `d_core` to the gradients of what the rule read, in `d_mixed`: those of a key head's queries and keys are
    /// summed over its value heads.
    pub(super) fn run_backward(&self, rows: &Rows<'_>, buffers: &mut DeltaAttentionBuffers) {
        let shape = self.shape;
        let (channels, values) = (shape.channels(), shape.values());
        let (shared, dk, dv) = (shape.shared(), shape.key_dim, shape.value_dim);
        let width = channels + values + 2 * shape.value_heads;
        let groups: Vec<_> = (0..shape.key_heads)
            .map(|key| {
                let heads = key * shared..(key + 1) * shared;
                let (q, b) = (key * dk, channels + values);
                vec![
                    q..q + dk,
                    shape.keys() + q..shape.keys() + q + dk,
                    2 * shape.keys() + heads.start * dv..2 * shape.keys() + heads.end * dv,
                    b + heads.start..b + heads.end,
                    b + shape.value_heads + heads.start..b + shape.value_heads + heads.end,
                ]
            })
            .collect();
        let ranges: Vec<_> = rows.spans().iter().map(|span| span.rows.clone()).collect();
        let (active, d_core) = (&buffers.active, &buffers.d_core);
        let to = MatMut::new(&mut buffers.d_mixed, rows.len(), width);
        for_each_part(to, &ranges, &groups, true, |sequence, key, mut part| {
            let range = ranges[sequence].clone();
            let mut sums = vec![0.0; range.len() * 2 * dk];
            SCRATCH.with_borrow_mut(|(scratch, _, _)| {
                for within in 0..shared {
                    let head = key * shared + within;
                    let token = |position: usize| {
                        let row = range.start + position;
                        let d_o = &d_core[row * values + head * dv..][..dv];
                        (self.token(active, row, head), d_o)
                    };
                    delta::backward((dk, dv), range.len(), scratch, token, |position, d| {
                        let sums = &mut sums[position * 2 * dk..][..2 * dk];
                        let both = d.q.iter().chain(&d.k);
                        sums.iter_mut().zip(both).for_each(|(sum, d)| *sum += d);
                        part.write(position, 2, within * dv, &d.v);
                        part.write(position, 3, within, &[d.beta]);
                        part.write(position, 4, within, &[d.gamma]);
                    });
                }
            });
            for (position, sums) in sums.chunks_exact(2 * dk).enumerate() {
                part.write(position, 0, 0, &sums[..dk]);
                part.write(position, 1, 0, &sums[dk..]);
            }
        });
    }

    /// Takes the gradients in `d_mixed` through lengths, sigmoids and the activation, in place.
    pub(super) fn activate_backward(
        &self,
        kept: &DeltaAttentionKept,
        buffers: &mut DeltaAttentionBuffers,
        gradients: &mut Gradients<'_>,
    ) {
        let shape = self.shape;
        let (channels, heads, keys) = (shape.channels(), shape.value_heads, shape.keys());
        let (width, scale) = (kept.mixed.width(), self.query_scale());
        let gates = channels + shape.values();
        // Of the logarithm of γ first, whose sums are needed in the order of rows.
        for (d, active) in buffers
            .d_mixed
            .chunks_exact_mut(width)
            .zip(buffers.active.chunks_exact(channels + 2 * heads))
        {
            for head in 0..heads {
                d[gates + heads + head] *= active[channels + head];
                let beta = active[channels + heads + head];
                d[gates + head] *= beta * (1.0 - beta);
            }
        }
        let mixed_rows = || kept.mixed.values.chunks_exact(width);
        if let Some(sums) = gradients.tensor(self.rate.key) {
            for (d, mixed) in buffers.d_mixed.chunks_exact(width).zip(mixed_rows()) {
                for (head, sum) in sums.iter_mut().enumerate() {
                    let at = gates + heads + head;
                    *sum += d[at] * self.log_decay(head, mixed[at]);
                }
            }
        }
        for (d, mixed) in buffers.d_mixed.chunks_exact_mut(width).zip(mixed_rows()) {
            for head in 0..heads {
                let at = gates + heads + head;
                let inner = mixed[at] + self.step_bias.values[head];
                d[at] *= -self.rate.values[head].exp() * sigmoid(inner);
            }
        }
        if let Some(sums) = gradients.tensor(self.step_bias.key) {
            for d in buffers.d_mixed.chunks_exact(width) {
                let numbers = sums.iter_mut().zip(&d[gates + heads..]);
                numbers.for_each(|(sum, d)| *sum += d);
            }
        }
        buffers
            .d_mixed
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(8 * channels))
            .zip(buffers.conv.par_chunks_exact(channels))
            .for_each_init(Vec::new, |x, (d, conv)| {
                x.clear();
                x.extend(conv[..2 * keys].iter().map(|&c| silu(c)));
                for (part, scale) in [(0..keys, scale), (keys..2 * keys, 1.0)] {
                    let heads = d[part.clone()].chunks_exact_mut(shape.key_dim);
                    for (d, x) in heads.zip(x[part].chunks_exact(shape.key_dim)) {
                        let inverse = inverse_length(x);
                        let along = dot(x, d) * inverse * inverse;
                        for (d, x) in d.iter_mut().zip(x) {
                            *d = scale * inverse * (*d - x * along);
                        }
                    }
                }
                for (d, &c) in d[..channels].iter_mut().zip(conv) {
                    *d *= silu_slope(c);
                }
            });
    }

    /// Takes the gradients in `d_mixed` through the convolution, in place: a row gives to itself and to those before it.
    pub(super) fn convolve_backward(
        &self,
        rows: &Rows<'_>,
        kept: &DeltaAttentionKept,
        buffers: &mut DeltaAttentionBuffers,
        gradients: &mut Gradients<'_>,
    ) {
        let (channels, kernel) = (self.shape.channels(), self.shape.kernel);
        let width = kept.mixed.width();
        let weight = |channel: usize, back: usize| {
            self.convolution.values[channel * kernel + kernel - 1 - back]
        };
        let mixed = kept.mixed.as_mat();
        if let Some(sums) = gradients.tensor(self.convolution.key) {
            let tails = self.tails(rows, &Past::Rows);
            for (span, tail) in rows.spans().iter().zip(&tails) {
                for row in span.rows.clone() {
                    let d = &buffers.d_mixed[row * width..][..channels];
                    for back in 0..kernel {
                        let x = self.input(mixed, tail, span, row, back);
                        for channel in 0..channels {
                            sums[channel * kernel + kernel - 1 - back] += d[channel] * x[channel];
                        }
                    }
                }
            }
        }
        for span in rows.spans() {
            for row in span.rows.clone() {
                // Rows from here on still have the gradients of the convolution's outputs.
                let (to, later) = buffers.d_mixed[row * width..].split_at_mut(width);
                for channel in 0..channels {
                    let mut sum = weight(channel, 0) * to[channel];
                    for back in 1..kernel.min(span.rows.end - row) {
                        sum =
                            weight(channel, back).mul_add(later[(back - 1) * width + channel], sum);
                    }
                    to[channel] = sum;
                }
            }
        }
    }
}
