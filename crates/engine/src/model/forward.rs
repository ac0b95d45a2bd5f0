//! The forward pass of packed rows, block by block.
//!
//! Training and sampling run the same code; they differ in where attention finds earlier keys, and in
//! whether a block's [`Kept`] values stay for the backward pass. See [`model`](super) for the formula.

use std::cell::RefCell;

use rayon::prelude::*;

use super::rows::{Rows, Span};
use super::workspace::{Kept, Scratch, Workspace, sized};
use super::{KvCache, Model, Site};
use crate::kernels::attention::{
    self, Block, Queries, TILE, keys_len, store_key, store_value, values_len,
};
use crate::kernels::gemm::Start;
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::rope::{Angles, Turn};
use crate::kernels::shared::{Part, for_each_part};
use crate::kernels::{norm, swiglu};

/// Elements that a thread should have before another one helps with row-wise work.
const ROW_WORK: usize = 1 << 15;

/// Where attention finds keys and values.
pub(crate) enum Memory<'c, 'k> {
    /// In the batch itself: every sequence starts at its first row.
    Batch,
    /// In caches, one a sequence, which have grown by this batch's rows.
    Caches(&'c mut [&'k mut KvCache]),
}

thread_local! {
    static ATTENTION: RefCell<(attention::Scratch, Vec<f32>, Vec<f32>)> = RefCell::default();
}

impl Model {
    /// Runs all blocks over a batch and keeps what the backward pass needs; `workspace.last` receives
    /// the output of the last block.
    pub(crate) fn forward_keeping(
        &self,
        tokens: &[u32],
        rows: &Rows<'_>,
        workspace: &mut Workspace,
    ) {
        workspace
            .kept
            .resize_with(self.config.layers, Kept::default);
        let angles = self.angles(rows);
        let Workspace {
            kept,
            last,
            scratch,
        } = workspace;
        if let Some(first) = kept.first_mut() {
            self.embed(tokens, &mut first.x);
        }
        for layer in 0..self.config.layers {
            let (before, after) = kept.split_at_mut(layer + 1);
            let next = after.first_mut().map_or(&mut *last, |kept| &mut kept.x);
            self.block(
                layer,
                rows,
                &angles,
                &mut before[layer],
                next,
                scratch,
                &mut Memory::Batch,
            );
        }
    }

    /// Runs all blocks over a batch and forgets everything but the result and what went to the caches.
    pub(crate) fn forward_once(
        &self,
        tokens: &[u32],
        rows: &Rows<'_>,
        workspace: &mut Workspace,
        mut memory: Memory<'_, '_>,
    ) {
        if workspace.kept.is_empty() {
            workspace.kept.push(Kept::default());
        }
        let angles = self.angles(rows);
        let Workspace {
            kept,
            last,
            scratch,
        } = workspace;
        let kept = &mut kept[0];
        self.embed(tokens, &mut kept.x);
        for layer in 0..self.config.layers {
            self.block(layer, rows, &angles, kept, last, scratch, &mut memory);
            std::mem::swap(&mut kept.x, last);
        }
        std::mem::swap(&mut kept.x, last);
    }

    pub(crate) fn angles(&self, rows: &Rows<'_>) -> Angles {
        self.rope
            .up_to(rows.positions().iter().max().map_or(0, |last| last + 1))
    }

    fn embed(&self, tokens: &[u32], x: &mut Vec<f32>) {
        let hidden = self.config.hidden;
        sized(x, tokens.len() * hidden)
            .par_chunks_exact_mut(hidden)
            .with_min_len(rows_per_task(hidden))
            .zip(tokens)
            .for_each(|(row, &token)| self.embedding.row(token as usize, row));
    }

    /// Runs one block from `kept.x` to `next`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of a pass, spelled out"
    )]
    fn block(
        &self,
        index: usize,
        rows: &Rows<'_>,
        angles: &Angles,
        kept: &mut Kept,
        next: &mut Vec<f32>,
        scratch: &mut Scratch,
        memory: &mut Memory<'_, '_>,
    ) {
        let (layer, config, count) = (&self.layers[index], &self.config, rows.len());
        let (hidden, query, kv) = (config.hidden, config.query_width(), config.kv_width());

        self.norm_rows(&kept.x, &layer.attention_norm, &mut scratch.normed);
        let normed = Mat::new(&scratch.normed, count, hidden);
        let qkv = sized(&mut kept.qkv, count * (query + 2 * kv));
        self.apply(
            index,
            &Site::QKV,
            normed,
            rows,
            qkv,
            Start::Zero,
            &mut kept.u_qkv,
        );
        self.rotate(index, rows, angles, &kept.qkv, &mut scratch.rotated);
        self.attend(index, rows, kept, &scratch.rotated, memory);

        copy(&kept.x, &mut kept.middle);
        let attended = Mat::with_stride(&kept.attended, count, query, query + config.heads);
        self.apply(
            index,
            &[Site::Output],
            attended,
            rows,
            &mut kept.middle,
            Start::Keep,
            &mut kept.u_output,
        );

        self.norm_rows(&kept.middle, &layer.mlp_norm, &mut scratch.normed);
        let normed = Mat::new(&scratch.normed, count, hidden);
        let gate_up = sized(&mut kept.gate_up, count * 2 * config.ffn);
        self.apply(
            index,
            &Site::GATE_UP,
            normed,
            rows,
            gate_up,
            Start::Zero,
            &mut kept.u_gate_up,
        );
        sized(&mut scratch.activation, count * config.ffn)
            .par_chunks_exact_mut(config.ffn)
            .with_min_len(rows_per_task(4 * config.ffn))
            .zip(kept.gate_up.par_chunks_exact(2 * config.ffn))
            .for_each(|(a, gate_up)| swiglu::forward(gate_up, a));
        copy(&kept.middle, next);
        let activation = Mat::new(&scratch.activation, count, config.ffn);
        self.apply(
            index,
            &[Site::Down],
            activation,
            rows,
            next,
            Start::Keep,
            &mut kept.u_down,
        );
    }

    /// Normalises each row.
    pub(crate) fn norm_rows(&self, x: &[f32], weight: &[f32], y: &mut Vec<f32>) {
        let (width, eps) = (weight.len(), self.eps());
        sized(y, x.len())
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(width))
            .zip(x.par_chunks_exact(width))
            .for_each(|(y, x)| norm::forward(x, weight, eps, y));
    }

    /// Copies queries and keys, normalises their heads where the model does, and rotates them.
    pub(crate) fn rotate(
        &self,
        layer: usize,
        rows: &Rows<'_>,
        angles: &Angles,
        qkv: &[f32],
        rotated: &mut Vec<f32>,
    ) {
        let (query, kv, d) = (
            self.config.query_width(),
            self.config.kv_width(),
            self.config.head_dim,
        );
        let norms = &self.layers[layer].qk_norms;
        sized(rotated, rows.len() * (query + kv))
            .par_chunks_exact_mut(query + kv)
            .with_min_len(rows_per_task(4 * (query + kv)))
            .zip(qkv.par_chunks_exact(query + 2 * kv))
            .zip(rows.positions())
            .for_each(|((to, from), &position)| {
                to.copy_from_slice(&from[..query + kv]);
                for (head, values) in to.chunks_exact_mut(d).enumerate() {
                    if let Some([q_norm, k_norm]) = norms {
                        let weight = if head < self.config.heads {
                            q_norm
                        } else {
                            k_norm
                        };
                        norm::forward_in_place(values, weight, self.eps());
                    }
                    angles.turn(values, position, Turn::Forward);
                }
            });
    }

    /// Attention of all sequences, each key head of each sequence a task.
    fn attend(
        &self,
        layer: usize,
        rows: &Rows<'_>,
        kept: &mut Kept,
        rotated: &[f32],
        memory: &mut Memory<'_, '_>,
    ) {
        let config = &self.config;
        let (query, kv, d) = (config.query_width(), config.kv_width(), config.head_dim);
        let count = rows.len();
        let q = Mat::with_stride(rotated, count, query, query + kv);
        let k = Mat::new(rotated, count, query + kv).columns(query, kv);
        let v = Mat::new(&kept.qkv, count, query + 2 * kv).columns(query + kv, kv);
        if let Memory::Caches(caches) = memory {
            for (span, cache) in rows.spans().iter().zip(caches.iter_mut()) {
                for (position, row) in (span.position..).zip(span.rows.clone()) {
                    for head in 0..config.kv_heads {
                        let columns = head * d..(head + 1) * d;
                        cache.store(
                            layer,
                            head,
                            position,
                            &k.row(row)[columns.clone()],
                            &v.row(row)[columns],
                        );
                    }
                }
            }
        }
        let shared = config.heads / config.kv_heads;
        // A key head's outputs, and the log-sum-exp of its query heads.
        let groups: Vec<_> = (0..config.kv_heads)
            .map(|kv_head| {
                let heads = kv_head * shared..(kv_head + 1) * shared;
                vec![
                    heads.start * d..heads.end * d,
                    query + heads.start..query + heads.end,
                ]
            })
            .collect();
        let ranges: Vec<_> = rows.spans().iter().map(|span| span.rows.clone()).collect();
        let work: usize = rows
            .spans()
            .iter()
            .map(|span| span.rows.len() * (span.position + span.rows.len()))
            .sum();
        let memory = &*memory;
        let width = query + config.heads;
        let attended = MatMut::new(sized(&mut kept.attended, count * width), count, width);
        for_each_part(
            attended,
            &ranges,
            &groups,
            work * query > ROW_WORK,
            |sequence, kv_head, part| {
                ATTENTION.with_borrow_mut(|(scratch, keys, values)| match memory {
                    Memory::Caches(caches) => {
                        let blocks = caches[sequence].blocks(layer, kv_head);
                        self.attend_head(
                            &rows.spans()[sequence],
                            kv_head,
                            q,
                            blocks,
                            scratch,
                            part,
                        );
                    }
                    Memory::Batch => {
                        let range = rows.spans()[sequence].rows.clone();
                        let len = range.len();
                        let columns = kv_head * d..(kv_head + 1) * d;
                        sized(keys, keys_len(len, d));
                        sized(values, values_len(len, d));
                        for (at, row) in range.enumerate() {
                            store_key(keys, at, &k.row(row)[columns.clone()]);
                            store_value(values, at, &v.row(row)[columns.clone()]);
                        }
                        let blocks = std::iter::once(Block { keys, values, len });
                        self.attend_head(
                            &rows.spans()[sequence],
                            kv_head,
                            q,
                            blocks,
                            scratch,
                            part,
                        );
                    }
                });
            },
        );
    }

    /// Attention of the query heads that share one key head, over one sequence.
    fn attend_head<'b>(
        &self,
        span: &Span,
        kv_head: usize,
        q: Mat<'_>,
        blocks: impl Iterator<Item = Block<'b>> + Clone,
        scratch: &mut attention::Scratch,
        mut part: Part<'_>,
    ) {
        let (d, scale) = (self.config.head_dim, self.attention_scale());
        let shared = self.config.heads / self.config.kv_heads;
        let first_head = kv_head * shared;
        let mut write = |row: usize, head: usize, values: &[f32], lse: f32| {
            part.write(row, 0, head * d, values);
            part.write(row, 1, head, &[lse]);
        };
        if span.rows.len() == 1 && shared <= TILE {
            // One position: its heads are the rows, so that keys are read once for all of them.
            let queries = Queries {
                data: &q.row(span.rows.start)[first_head * d..],
                stride: d,
                rows: shared,
                d,
                position: span.position,
                position_step: 0,
            };
            attention::forward(queries, blocks, scale, scratch, |head, o, lse| {
                write(0, head, o, lse)
            });
            return;
        }
        for first in (0..span.rows.len()).step_by(TILE) {
            for head in 0..shared {
                let queries = Queries {
                    data: q
                        .columns((first_head + head) * d, d)
                        .part(span.rows.start + first, 1)
                        .tail(),
                    stride: q.stride(),
                    rows: TILE.min(span.rows.len() - first),
                    d,
                    position: span.position + first,
                    position_step: 1,
                };
                attention::forward(queries, blocks.clone(), scale, scratch, |i, o, lse| {
                    write(first + i, head, o, lse);
                });
            }
        }
    }
}

/// How many rows of `width` elements make a task.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (ROW_WORK / width.max(1)).max(1)
}

fn copy(from: &[f32], to: &mut Vec<f32>) {
    to.clear();
    to.extend_from_slice(from);
}
