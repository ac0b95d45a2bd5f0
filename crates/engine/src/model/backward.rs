//! The backward pass: from the gradient of the last block's output to the gradients of what is trained.
//!
//! A block is undone in reverse. With `d` the gradient of its output (see [`model`](super) for the
//! forward formulas):
//!
//! ```text
//! da = d Wd        dg, du = swiglu'(da)        dh = d + norm'([dg, du] [Wg; Wu])
//! do = dh Wo       dq, dk, dv = attention'(do) dx = dh + norm'(norm', rotated back, [dq, dk, dv] [Wq; Wk; Wv])
//! ```
//!
//! A linear layer with an adapter, `U = X (s A)ᵀ` and `Y = X Wᵀ + U Bᵀ`, has
//!
//! ```text
//! dU = dY (s B)        dX = dY W + dU A        dB = dYᵀ U        dA = dUᵀ X
//! ```
//!
//! (`dU` carries the factor `s` that belongs to `A`). Gradients of parameters continue the sums they are
//! given, in the order of rows; activations are recomputed where that is cheap.

use std::cell::RefCell;

use rayon::prelude::*;

use super::forward::rows_per_task;
use super::rows::Rows;
use super::workspace::{Kept, Workspace, sized};
use super::{Model, Site};
use crate::adapter::Adapter;
use crate::kernels::attention_backward::{self, Group, Target};
use crate::kernels::gemm::{Start, outer, project, project_back};
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::rope::{Angles, Turn};
use crate::kernels::shared::for_each_part;
use crate::kernels::{norm, swiglu};
use crate::train::slots::{LinearSlots, Slots};

/// The sums that the backward pass continues.
pub(crate) struct Gradients<'a> {
    pub(crate) slots: &'a Slots,
    pub(crate) values: &'a mut [Vec<f32>],
}

impl Gradients<'_> {
    /// Adds the gradients of one layer's adapter.
    pub(crate) fn pair(
        &mut self,
        [a, b]: [usize; 2],
        x: Mat<'_>,
        u: Mat<'_>,
        dy: Mat<'_>,
        d_u: Mat<'_>,
    ) {
        let rank = self.slots.tensors[a].shape[0];
        outer(
            u.columns(0, rank),
            dy,
            MatMut::new(&mut self.values[b], rank, dy.cols()),
        );
        outer(
            d_u.columns(0, rank),
            x,
            MatMut::new(&mut self.values[a], rank, x.cols()),
        );
    }

    fn linear(&mut self, slots: LinearSlots, x: Mat<'_>, dy: Mat<'_>) {
        if let Some(slot) = slots.weight {
            outer(
                dy,
                x,
                MatMut::new(&mut self.values[slot], dy.cols(), x.cols()),
            );
        }
        if let Some(slot) = slots.bias {
            let sums = &mut self.values[slot];
            for row in 0..dy.rows() {
                sums.iter_mut()
                    .zip(dy.row(row))
                    .for_each(|(sum, dy)| *sum += dy);
            }
        }
    }

    fn norm(&mut self, slot: Option<usize>, x: &[f32], dy: &[f32], eps: f32) {
        if let Some(slot) = slot {
            let sums = &mut self.values[slot];
            let width = sums.len();
            for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width)) {
                norm::backward_weight(x, eps, dy, sums);
            }
        }
    }
}

/// What the layers of one `apply` saw: input, inner activations, and gradient of the output.
struct Seen<'a> {
    x: Mat<'a>,
    u: &'a [f32],
    dy: Mat<'a>,
}

thread_local! {
    static ATTENTION: RefCell<attention_backward::Scratch> = RefCell::default();
}

impl Model {
    /// Goes back through all blocks, from the gradient of the last one's output.
    ///
    /// The workspace must hold the batch's forward pass; its kept values are used up.
    pub(crate) fn backward(
        &self,
        tokens: &[u32],
        rows: &Rows<'_>,
        adapter: Option<&Adapter>,
        workspace: &mut Workspace,
        mut d: Vec<f32>,
        gradients: &mut Gradients<'_>,
    ) {
        let angles = self.angles(rows);
        // Nothing below the first block is trained by an adapter.
        let to_embedding = gradients.slots.embedding.is_some();
        for index in (0..self.config.layers).rev() {
            let needs_input = index > 0 || to_embedding;
            self.block_backward(
                index,
                rows,
                &angles,
                adapter,
                workspace,
                &mut d,
                gradients,
                needs_input,
            );
        }
        if let Some(slot) = gradients.slots.embedding {
            let hidden = self.config.hidden;
            let sums = &mut gradients.values[slot];
            for (&token, d) in tokens.iter().zip(d.chunks_exact(hidden)) {
                let sums = &mut sums[token as usize * hidden..][..hidden];
                sums.iter_mut().zip(d).for_each(|(sum, d)| *sum += d);
            }
        }
    }

    /// Turns `d` from the gradient of a block's output into that of its input.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of a pass, spelled out"
    )]
    fn block_backward(
        &self,
        index: usize,
        rows: &Rows<'_>,
        angles: &Angles,
        adapter: Option<&Adapter>,
        workspace: &mut Workspace,
        d: &mut [f32],
        gradients: &mut Gradients<'_>,
        needs_input: bool,
    ) {
        let (layer, config, count) = (&self.layers[index], &self.config, rows.len());
        let (hidden, query, kv, ffn) = (
            config.hidden,
            config.query_width(),
            config.kv_width(),
            config.ffn,
        );
        let kept = &mut workspace.kept[index];
        let scratch = &mut workspace.scratch;
        let slots = gradients.slots.layers[index];

        sized(&mut scratch.activation, count * ffn)
            .par_chunks_exact_mut(ffn)
            .with_min_len(rows_per_task(4 * ffn))
            .zip(kept.gate_up.par_chunks_exact(2 * ffn))
            .for_each(|(a, gate_up)| swiglu::forward(gate_up, a));
        let seen = Seen {
            x: Mat::new(&scratch.activation, count, ffn),
            u: &kept.u_down,
            dy: Mat::new(d, count, hidden),
        };
        let da = sized(&mut scratch.d_activation, count * ffn);
        self.apply_backward(
            index,
            &[Site::Down],
            adapter,
            &seen,
            Some(da),
            &mut scratch.d_u,
            gradients,
        );
        kept.gate_up
            .par_chunks_exact_mut(2 * ffn)
            .with_min_len(rows_per_task(4 * ffn))
            .zip(scratch.d_activation.par_chunks_exact(ffn))
            .for_each(|(gate_up, da)| swiglu::backward(gate_up, da));

        self.norm_rows(&kept.middle, &layer.mlp_norm, &mut scratch.normed);
        let dy = Mat::new(&kept.gate_up, count, 2 * ffn);
        let seen = Seen {
            x: Mat::new(&scratch.normed, count, hidden),
            u: &kept.u_gate_up,
            dy,
        };
        let d_normed = sized(&mut scratch.d_normed, count * hidden);
        self.apply_backward(
            index,
            &Site::GATE_UP,
            adapter,
            &seen,
            Some(d_normed),
            &mut scratch.d_u,
            gradients,
        );
        gradients.norm(slots.mlp_norm, &kept.middle, &scratch.d_normed, self.eps());
        self.add_norm_backward(&kept.middle, &layer.mlp_norm, &scratch.d_normed, d);

        let seen = Seen {
            x: Mat::with_stride(&kept.attended, count, query, query + config.heads),
            u: &kept.u_output,
            dy: Mat::new(d, count, hidden),
        };
        let d_attended = sized(&mut scratch.d_attended, count * query);
        self.apply_backward(
            index,
            &[Site::Output],
            adapter,
            &seen,
            Some(d_attended),
            &mut scratch.d_u,
            gradients,
        );

        self.rotate(index, rows, angles, &kept.qkv, &mut scratch.rotated);
        sized(&mut scratch.d_qkv, count * (query + 2 * kv));
        self.attend_backward(
            rows,
            kept,
            &scratch.rotated,
            &scratch.d_attended,
            &mut scratch.d_qkv,
        );
        self.rotate_backward(
            index,
            rows,
            angles,
            &kept.qkv,
            &mut scratch.d_qkv,
            gradients,
        );

        self.norm_rows(&kept.x, &layer.attention_norm, &mut scratch.normed);
        let dy = Mat::new(&scratch.d_qkv, count, query + 2 * kv);
        let seen = Seen {
            x: Mat::new(&scratch.normed, count, hidden),
            u: &kept.u_qkv,
            dy,
        };
        let d_normed = needs_input.then(|| sized(&mut scratch.d_normed, count * hidden));
        self.apply_backward(
            index,
            &Site::QKV,
            adapter,
            &seen,
            d_normed,
            &mut scratch.d_u,
            gradients,
        );
        if needs_input {
            gradients.norm(slots.attention_norm, &kept.x, &scratch.d_normed, self.eps());
            self.add_norm_backward(&kept.x, &layer.attention_norm, &scratch.d_normed, d);
        }
    }

    /// Undoes [`apply`](Self::apply): adds to the gradients of what is trained, and writes that of the
    /// input if `dx` is given.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of a pass, spelled out"
    )]
    fn apply_backward(
        &self,
        index: usize,
        sites: &[Site],
        adapter: Option<&Adapter>,
        seen: &Seen<'_>,
        mut dx: Option<&mut [f32]>,
        d_u: &mut Vec<f32>,
        gradients: &mut Gradients<'_>,
    ) {
        let Seen { x, u, dy } = *seen;
        let (count, inputs) = (x.rows(), x.cols());
        let inner: usize = u.len() / count.max(1);
        let (mut column, mut u_column) = (0, 0);
        let mut start = Start::Zero;
        for &site in sites {
            let linear = &self.layers[index].linears[site as usize];
            let slots = gradients.slots.layers[index].linears[site as usize];
            let dy = dy.columns(column, linear.weight.outputs());
            column += linear.weight.outputs();
            if let Some(dx) = &mut dx {
                project_back(dy, &linear.weight, MatMut::new(dx, count, inputs), start);
                start = Start::Keep;
            }
            gradients.linear(slots, x, dy);
            let Some(pair) = adapter.and_then(|adapter| adapter.pair(index, site)) else {
                continue;
            };
            let rank = pair.down.outputs();
            project(
                dy,
                &[&pair.up_back],
                MatMut::new(sized(d_u, count * rank), count, rank),
                Start::Zero,
            );
            let d_u = Mat::new(d_u, count, rank);
            if let Some(dx) = &mut dx {
                project(
                    d_u,
                    &[&pair.down_back],
                    MatMut::new(dx, count, inputs),
                    Start::Keep,
                );
            }
            if let Some(lora) = slots.lora {
                gradients.pair(
                    lora,
                    x,
                    Mat::new(u, count, inner).columns(u_column, rank),
                    dy,
                    d_u,
                );
            }
            u_column += rank;
        }
    }

    fn add_norm_backward(&self, x: &[f32], weight: &[f32], dy: &[f32], d: &mut [f32]) {
        let (width, eps) = (weight.len(), self.eps());
        d.par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(width))
            .zip(x.par_chunks_exact(width).zip(dy.par_chunks_exact(width)))
            .for_each(|(d, (x, dy))| norm::backward(x, weight, eps, dy, d));
    }

    /// Attention of all sequences, back: gradients of rotated queries and keys, and of values.
    fn attend_backward(
        &self,
        rows: &Rows<'_>,
        kept: &Kept,
        rotated: &[f32],
        d_attended: &[f32],
        d_qkv: &mut [f32],
    ) {
        let config = &self.config;
        let (query, kv, d) = (config.query_width(), config.kv_width(), config.head_dim);
        let (count, shared) = (rows.len(), config.heads / config.kv_heads);
        let rotated = Mat::new(rotated, count, query + kv);
        let qkv = Mat::new(&kept.qkv, count, query + 2 * kv);
        let attended = Mat::new(&kept.attended, count, query + config.heads);
        let d_attended = Mat::new(d_attended, count, query);
        // The columns of a key head: its queries, its keys, its values.
        let groups: Vec<_> = (0..config.kv_heads)
            .map(|kv_head| {
                let (q, k) = (kv_head * shared * d, query + kv_head * d);
                vec![q..q + shared * d, k..k + d, k + kv..k + kv + d]
            })
            .collect();
        let ranges: Vec<_> = rows.spans().iter().map(|span| span.rows.clone()).collect();
        let to = MatMut::new(d_qkv, count, query + 2 * kv);
        for_each_part(to, &ranges, &groups, true, |sequence, kv_head, mut part| {
            let (first, len) = (ranges[sequence].start, ranges[sequence].len());
            let head = kv_head * shared;
            let group = Group {
                q: rotated.columns(head * d, shared * d).part(first, len),
                k: rotated.columns(query + kv_head * d, d).part(first, len),
                v: qkv.columns(query + kv + kv_head * d, d).part(first, len),
                o: attended.columns(head * d, shared * d).part(first, len),
                d_o: d_attended.columns(head * d, shared * d).part(first, len),
                lse: attended.columns(query + head, shared).part(first, len),
                heads: shared,
            };
            ATTENTION.with_borrow_mut(|scratch| {
                attention_backward::backward(
                    &group,
                    self.attention_scale(),
                    scratch,
                    |target, position, values| match target {
                        Target::Query(within) => part.write(position, 0, within * d, values),
                        Target::Key => part.write(position, 1, 0, values),
                        Target::Value => part.write(position, 2, 0, values),
                    },
                );
            });
        });
    }

    /// Turns gradients of rotated, normalised heads into those of the projections' outputs, in place.
    fn rotate_backward(
        &self,
        index: usize,
        rows: &Rows<'_>,
        angles: &Angles,
        qkv: &[f32],
        d_qkv: &mut [f32],
        gradients: &mut Gradients<'_>,
    ) {
        let (query, kv, d) = (
            self.config.query_width(),
            self.config.kv_width(),
            self.config.head_dim,
        );
        let (width, eps, heads) = (query + 2 * kv, self.eps(), self.config.heads);
        d_qkv
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(4 * width))
            .zip(rows.positions())
            .for_each(|(row, &position)| {
                row[..query + kv]
                    .chunks_exact_mut(d)
                    .for_each(|head| angles.turn(head, position, Turn::Back));
            });
        let Some([q_norm, k_norm]) = &self.layers[index].qk_norms else {
            return;
        };
        if let Some(slots) = gradients.slots.layers[index].qk_norms {
            for (x, dy) in qkv.chunks_exact(width).zip(d_qkv.chunks_exact(width)) {
                let pairs = x[..query + kv].chunks_exact(d).zip(dy.chunks_exact(d));
                for (head, (x, dy)) in pairs.enumerate() {
                    let slot = slots[usize::from(head >= heads)];
                    norm::backward_weight(x, eps, dy, &mut gradients.values[slot]);
                }
            }
        }
        d_qkv
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(4 * width))
            .zip(qkv.par_chunks_exact(width))
            .for_each_init(Vec::new, |dy, (d_row, x)| {
                let pairs = d_row[..query + kv]
                    .chunks_exact_mut(d)
                    .zip(x.chunks_exact(d));
                for (head, (dx, x)) in pairs.enumerate() {
                    dy.clear();
                    dy.extend_from_slice(dx);
                    dx.fill(0.0);
                    norm::backward(x, if head < heads { q_norm } else { k_norm }, eps, dy, dx);
                }
            });
    }
}
