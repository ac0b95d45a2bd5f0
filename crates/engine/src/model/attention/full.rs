//! Causal attention over whole sequences, with query heads that share key and value heads.
//!
//! ```text
//! q, k, v = x Wq + b, x Wk + b, x Wv + b
//! y += attention(rotate(norm(q)), rotate(norm(k)), v) Wo
//!
//! do = dy Wo        dq, dk, dv = attention'(do), rotated back, through norm'
//! dx = [dq, dk, dv] [Wq; Wk; Wv]
//! ```
//!
//! Only some models have the biases, the norms of query and key heads, a window, bounds of scores and sinks; in some
//! the three projections are one matrix.

mod gates;
mod sinks;

use std::cell::RefCell;

use rayon::prelude::*;

use crate::config::LayerKind;
use crate::kernels::attention::{
    self, Block, Queries, Scoring, TILE, keys_len, store_key, store_value, values_len,
};
use crate::kernels::attention_backward::{self, Group, Target};
use crate::kernels::cached::{CacheFormat, Numbers};
use crate::kernels::gemm::Start;
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::norm;
use crate::kernels::rope::{Angles, Turn};
use crate::kernels::shared::{Part, for_each_part};
use crate::model::attention::Past;
use crate::model::backward::{BackwardPass, Gradients};
use crate::model::forward::ForwardPass;
use crate::model::linear::{self, Bias, Linear, Seen};
use crate::model::load::LayerReader;
use crate::model::norm::Norm;
use crate::model::rows::{ROW_WORK, Rows, Span, rows_per_task};
use crate::model::tensor_table::{LayerTensors, LinearSpec, Names, NormSpec, SiteGroup};
use crate::model::workspace::{KeptRows, sized};
use crate::{Error, ModelConfig};

pub(crate) const QUERY: Names = Names::new("self_attn.q_proj", "attn_q");
const KEY: Names = Names::new("self_attn.k_proj", "attn_k");
const VALUE: Names = Names::new("self_attn.v_proj", "attn_v");
const FUSED: Names = Names::new("self_attn.qkv_proj", "attn_qkv");
pub(crate) const OUTPUT: Names = Names::new("self_attn.o_proj", "attn_output");
pub(crate) const QUERY_NORM: Names = Names::new("self_attn.q_norm", "attn_q_norm");
const KEY_NORM: Names = Names::new("self_attn.k_norm", "attn_k_norm");
const SINKS: Names = Names::new("self_attn.sinks", "attn_sinks.weight");

pub(crate) struct FullAttention {
    /// Index among the layers that have keys and values, under which caches hold those.
    layer: usize,
    has_gates: bool,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    kind: LayerKind,
    scoring: Scoring,
    /// What keys and values are rounded to.
    key_values: CacheFormat,
    /// Queries, keys and values, or all in one.
    inputs: Vec<Linear>,
    output: Linear,
    head_norms: Option<HeadNorms>,
    sinks: Option<Bias>,
}

/// Norms of each query head and of each key head.
struct HeadNorms {
    query: Norm,
    key: Norm,
}

/// Rotated heads and probabilities are recomputed.
#[derive(Debug)]
pub(crate) struct FullAttentionKept {
    /// Queries, keys and values before norm and rotation.
    qkv: KeptRows, // rows × (query + 2 kv)
    /// Output of attention, then the log-sum-exp of each head's scores.
    attended: KeptRows, // rows × (query + heads)
    /// Gates of the output, where there are any.
    gates: KeptRows, // rows × query
    /// Inner activations of the adapters.
    u_qkv: Vec<f32>,
    u_output: Vec<f32>,
}

#[derive(Debug, Default)]
pub(crate) struct FullAttentionBuffers {
    raw: Vec<f32>,        // rows × (2 query + 2 kv), where queries come with gates
    gated: Vec<f32>,      // rows × query
    rotated: Vec<f32>,    // rows × (query + kv)
    d_attended: Vec<f32>, // rows × query
    d_qkv: Vec<f32>,      // rows × (query + 2 kv)
}

thread_local! {
    static FORWARD: RefCell<(attention::AttentionScratch, Vec<f32>, Vec<f32>)> = RefCell::default();
    static BACKWARD: RefCell<attention_backward::AttentionBackwardScratch> = RefCell::default();
}

impl FullAttention {
    /// Counts the numbers in the buffers of a row, in both directions.
    pub(crate) fn buffer_numbers(config: &ModelConfig) -> usize {
        let (query, kv) = (config.query_width(), config.kv_width());
        2 * (query + 2 * kv) + query + usize::from(config.features.output_gate) * 4 * query
    }

    pub(crate) fn declare(config: &ModelConfig, tensors: &mut LayerTensors<'_>) {
        let (hidden, query, kv) = (config.hidden, config.query_width(), config.kv_width());
        // A gate comes with each number of a query.
        let gated = 1 + usize::from(config.features.output_gate);
        let linear = |names, outputs, inputs| LinearSpec {
            names,
            outputs,
            inputs,
            has_bias: config.qkv_bias,
            rotary_heads: None,
            group: SiteGroup::Attention,
        };
        if config.features.fused_projections {
            tensors.linear(&linear(FUSED, query + 2 * kv, hidden));
        } else {
            tensors.linear(&LinearSpec {
                rotary_heads: Some(config.heads),
                ..linear(QUERY, gated * query, hidden)
            });
            tensors.linear(&LinearSpec {
                rotary_heads: Some(config.kv_heads),
                ..linear(KEY, kv, hidden)
            });
            tensors.linear(&linear(VALUE, kv, hidden));
        }
        tensors.linear(&LinearSpec {
            has_bias: config.attention_output_bias,
            ..linear(OUTPUT, hidden, query)
        });
        if config.qk_norm {
            for names in [QUERY_NORM, KEY_NORM] {
                let width = config.head_dim;
                tensors.optional_norm(&NormSpec { names, width });
            }
        }
        if config.features.sinks {
            tensors.vector(SINKS, config.heads);
        }
    }

    pub(crate) fn load(config: &ModelConfig, reader: &LayerReader<'_>) -> Result<Self, Error> {
        let head_norms = if config.qk_norm {
            Some(HeadNorms {
                query: reader.norm(QUERY_NORM)?,
                key: reader.norm(KEY_NORM)?,
            })
        } else {
            None
        };
        let names: &[Names] = match config.features.fused_projections {
            true => &[FUSED],
            false => &[QUERY, KEY, VALUE],
        };
        let kind = config.layer_kind(reader.layer);
        Ok(Self {
            layer: reader.layer - config.delta_layers(reader.layer),
            has_gates: config.features.output_gate,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            kind,
            scoring: Scoring {
                scale: config.score_scale() as f32,
                window: config
                    .features
                    .window
                    .filter(|_| kind == LayerKind::Sliding),
                softcap: config.features.attention_softcap.map(|cap| cap as f32),
            },
            key_values: reader.key_values(),
            inputs: names
                .iter()
                .map(|&names| reader.linear(names))
                .collect::<Result<_, _>>()?,
            output: reader.linear(OUTPUT)?,
            head_norms,
            sinks: match config.features.sinks {
                true => Some(reader.vector(SINKS)?),
                false => None,
            },
        })
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        self.inputs.iter().chain([&self.output]).collect()
    }

    /// Width of all query heads together.
    fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    pub(crate) fn forward(
        &self,
        pass: &mut ForwardPass<'_>,
        x: Mat<'_>,
        y: &mut [f32],
        kept: &mut FullAttentionKept,
        buffers: &mut FullAttentionBuffers,
    ) {
        let width = self.query_width() + kept.qkv.width();
        let qkv = kept.qkv.resize(x.rows());
        linear::forward(
            &self.inputs.iter().collect::<Vec<_>>(),
            x,
            pass.rows,
            match self.has_gates {
                true => sized(&mut buffers.raw, x.rows() * width),
                false => &mut *qkv,
            },
            Start::Zero,
            &mut kept.u_qkv,
        );
        if self.has_gates {
            self.part_gates(&buffers.raw, qkv, kept.gates.resize(x.rows()));
        }
        self.round_values(&mut kept.qkv.values);
        self.rotate(
            pass.rows,
            pass.angles.of(self.kind),
            &kept.qkv.values,
            &mut buffers.rotated,
        );
        self.attend(pass, kept, &buffers.rotated);
        if self.has_gates {
            self.gate(kept, &mut buffers.gated);
        }
        linear::forward(
            &[&self.output],
            self.gated(&kept.attended, &buffers.gated),
            pass.rows,
            y,
            Start::Keep,
            &mut kept.u_output,
        );
    }

    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        dx: Option<&mut [f32]>,
        kept: &FullAttentionKept,
        buffers: &mut FullAttentionBuffers,
    ) {
        let (count, query, kv) = (x.rows(), self.query_width(), self.kv_width());
        if self.has_gates {
            self.gate(kept, &mut buffers.gated);
        }
        let seen = Seen {
            x: self.gated(&kept.attended, &buffers.gated),
            u: &kept.u_output,
            dy,
        };
        let d_attended = sized(&mut buffers.d_attended, count * query);
        linear::backward(&[&self.output], &seen, Some(d_attended), pass);
        // From here on, the gated outputs are the gates' gradients.
        if self.has_gates {
            gates::gates_backward(kept, d_attended, &mut buffers.gated);
        }

        let qkv = &kept.qkv.values;
        let angles = pass.angles.of(self.kind);
        self.rotate(pass.rows, angles, qkv, &mut buffers.rotated);
        let d_qkv = sized(&mut buffers.d_qkv, count * (query + 2 * kv));
        self.attend_backward(
            pass.rows,
            kept,
            &buffers.rotated,
            &buffers.d_attended,
            d_qkv,
        );
        self.sinks_backward(kept, &buffers.d_attended, &mut pass.gradients);
        self.rotate_backward(pass.rows, angles, qkv, d_qkv, &mut pass.gradients);

        let seen = Seen {
            x,
            u: &kept.u_qkv,
            dy: match self.has_gates {
                false => Mat::new(d_qkv, count, query + 2 * kv),
                true => {
                    let raw = sized(&mut buffers.raw, count * 2 * (query + kv));
                    self.join_gates(d_qkv, &buffers.gated, raw);
                    Mat::new(raw, count, 2 * (query + kv))
                }
            },
        };
        let inputs: Vec<&Linear> = self.inputs.iter().collect();
        linear::backward(&inputs, &seen, dx, pass);
    }

    /// The input of the output projection.
    fn gated<'a>(&self, attended: &'a KeptRows, gated: &'a [f32]) -> Mat<'a> {
        let query = self.query_width();
        match self.has_gates {
            false => attended.as_mat().columns(0, query),
            true => Mat::new(gated, gated.len() / query, query),
        }
    }

    /// Rounds values to what caches hold.
    fn round_values(&self, qkv: &mut [f32]) {
        if self.key_values == CacheFormat::F32 {
            return;
        }
        let width = self.query_width() + 2 * self.kv_width();
        for row in qkv.chunks_exact_mut(width) {
            let values = row[width - self.kv_width()..].chunks_exact_mut(self.head_dim);
            values.for_each(|value| self.key_values.round(value));
        }
    }

    /// Copies queries and keys, normalises their heads where the model does, and rotates them; keys are rounded to what
    /// caches hold.
    fn rotate(&self, rows: &Rows<'_>, angles: &Angles, qkv: &[f32], rotated: &mut Vec<f32>) {
        let (query, kv) = (self.query_width(), self.kv_width());
        sized(rotated, rows.len() * (query + kv))
            .par_chunks_exact_mut(query + kv)
            .with_min_len(rows_per_task(4 * (query + kv)))
            .zip(qkv.par_chunks_exact(query + 2 * kv))
            .zip(rows.positions())
            .for_each(|((to, from), &position)| {
                to.copy_from_slice(&from[..query + kv]);
                for (head, values) in to.chunks_exact_mut(self.head_dim).enumerate() {
                    if let Some(norms) = &self.head_norms {
                        let norm = if head < self.heads {
                            &norms.query
                        } else {
                            &norms.key
                        };
                        norm::forward_in_place(values, &norm.weight, norm.eps);
                    }
                    angles.turn(values, position, Turn::Forward);
                    if head >= self.heads {
                        self.key_values.round(values);
                    }
                }
            });
    }

    /// Attention of all sequences, each key head of each sequence a task.
    fn attend(&self, pass: &mut ForwardPass<'_>, kept: &mut FullAttentionKept, rotated: &[f32]) {
        let (query, kv, d) = (self.query_width(), self.kv_width(), self.head_dim);
        let rows = pass.rows;
        let count = rows.len();
        let q = Mat::with_stride(rotated, count, query, query + kv);
        let k = Mat::new(rotated, count, query + kv).columns(query, kv);
        let v = kept.qkv.as_mat().columns(query + kv, kv);
        if let Past::Caches(caches) = &mut pass.past {
            for (span, cache) in rows.spans().iter().zip(caches.iter_mut()) {
                for (position, row) in (span.position..).zip(span.rows.clone()) {
                    for head in 0..self.kv_heads {
                        let columns = head * d..(head + 1) * d;
                        cache.store(
                            self.layer,
                            head,
                            position,
                            &k.row(row)[columns.clone()],
                            &v.row(row)[columns],
                        );
                    }
                }
            }
        }
        let shared = self.heads / self.kv_heads;
        // A key head's outputs, and the log-sum-exp of its query heads.
        let groups: Vec<_> = (0..self.kv_heads)
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
        let past = &pass.past;
        let attended = MatMut::new(kept.attended.resize(count), count, query + self.heads);
        for_each_part(
            attended,
            &ranges,
            &groups,
            work * query > ROW_WORK,
            |sequence, kv_head, part| {
                let span = &rows.spans()[sequence];
                FORWARD.with_borrow_mut(|(scratch, keys, values)| match past {
                    Past::Caches(caches) => {
                        let blocks = caches[sequence].blocks(self.layer, kv_head);
                        self.attend_head(span, kv_head, q, blocks, scratch, part);
                    }
                    Past::Rows => {
                        let len = span.rows.len();
                        let columns = kv_head * d..(kv_head + 1) * d;
                        sized(keys, keys_len(len, d));
                        sized(values, values_len(len, d));
                        for (at, row) in span.rows.clone().enumerate() {
                            store_key(keys, at, &k.row(row)[columns.clone()]);
                            store_value(values, at, &v.row(row)[columns.clone()]);
                        }
                        let blocks = std::iter::once(Block {
                            keys: Numbers::F32(keys),
                            values: Numbers::F32(values),
                            len,
                        });
                        self.attend_head(span, kv_head, q, blocks, scratch, part);
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
        scratch: &mut attention::AttentionScratch,
        mut part: Part<'_>,
    ) {
        let (d, scoring) = (self.head_dim, self.scoring);
        let shared = self.heads / self.kv_heads;
        let first_head = kv_head * shared;
        let sinks = self.sinks.as_ref().map_or(&[][..], |sinks| &sinks.values);
        let sinks = sinks.get(first_head..).unwrap_or_default();
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
                sinks,
            };
            attention::forward(queries, blocks, scoring, scratch, |head, o, lse| {
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
                    sinks: sinks.get(head..).unwrap_or_default(),
                };
                attention::forward(queries, blocks.clone(), scoring, scratch, |i, o, lse| {
                    write(first + i, head, o, lse);
                });
            }
        }
    }

    /// Attention of all sequences, back: gradients of rotated queries and keys, and of values.
    fn attend_backward(
        &self,
        rows: &Rows<'_>,
        kept: &FullAttentionKept,
        rotated: &[f32],
        d_attended: &[f32],
        d_qkv: &mut [f32],
    ) {
        let (query, kv, d) = (self.query_width(), self.kv_width(), self.head_dim);
        let (count, shared) = (rows.len(), self.heads / self.kv_heads);
        let rotated = Mat::new(rotated, count, query + kv);
        let (qkv, attended) = (kept.qkv.as_mat(), kept.attended.as_mat());
        let d_attended = Mat::new(d_attended, count, query);
        // The columns of a key head: its queries, its keys, its values.
        let groups: Vec<_> = (0..self.kv_heads)
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
            BACKWARD.with_borrow_mut(|scratch| {
                attention_backward::backward(
                    &group,
                    self.scoring,
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
        rows: &Rows<'_>,
        angles: &Angles,
        qkv: &[f32],
        d_qkv: &mut [f32],
        gradients: &mut Gradients<'_>,
    ) {
        let (query, kv, d) = (self.query_width(), self.kv_width(), self.head_dim);
        let width = query + 2 * kv;
        d_qkv
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(4 * width))
            .zip(rows.positions())
            .for_each(|(row, &position)| {
                row[..query + kv]
                    .chunks_exact_mut(d)
                    .for_each(|head| angles.turn(head, position, Turn::Back));
            });
        let Some(norms) = &self.head_norms else {
            return;
        };
        let parts = [(&norms.query, 0..query), (&norms.key, query..query + kv)];
        for (norm, columns) in parts.clone() {
            let Some(sums) = gradients.tensor(norm.key) else {
                continue;
            };
            for (x, dy) in qkv.chunks_exact(width).zip(d_qkv.chunks_exact(width)) {
                let heads = x[columns.clone()].chunks_exact(d);
                for (x, dy) in heads.zip(dy[columns.clone()].chunks_exact(d)) {
                    norm::backward_weight(x, norm.eps, dy, sums);
                }
            }
        }
        d_qkv
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(4 * width))
            .zip(qkv.par_chunks_exact(width))
            .for_each_init(Vec::new, |dy, (d_row, x)| {
                for (norm, columns) in parts.clone() {
                    let heads = d_row[columns.clone()].chunks_exact_mut(d);
                    for (dx, x) in heads.zip(x[columns].chunks_exact(d)) {
                        dy.clear();
                        dy.extend_from_slice(dx);
                        dx.fill(0.0);
                        norm::backward(x, &norm.weight, norm.eps, dy, dx);
                    }
                }
            });
    }
}

impl FullAttentionKept {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let (query, kv) = (config.query_width(), config.kv_width());
        Self {
            qkv: KeptRows::new(query + 2 * kv),
            attended: KeptRows::new(query + config.heads),
            gates: KeptRows::new(match config.features.output_gate {
                true => query,
                false => 0,
            }),
            u_qkv: Vec::new(),
            u_output: Vec::new(),
        }
    }

    /// Adapters aside, whose rank decides what they keep.
    pub(crate) fn bytes_per_row(&self) -> usize {
        let Self {
            qkv,
            attended,
            gates,
            u_qkv: _,
            u_output: _,
        } = self;
        qkv.bytes_per_row() + attended.bytes_per_row() + gates.bytes_per_row()
    }
}
