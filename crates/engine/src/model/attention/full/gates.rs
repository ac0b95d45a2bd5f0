//! Gates of attention's output, which come with the queries: `y += (o ⊙ σ(g)) Wo`.

use rayon::prelude::*;

use super::{FullAttention, FullAttentionKept};
use crate::kernels::exp::exp;
use crate::model::rows::rows_per_task;
use crate::model::workspace::sized;

impl FullAttention {
    /// Takes queries and gates, which come head by head, apart.
    pub(super) fn part_gates(&self, raw: &[f32], qkv: &mut [f32], gates: &mut [f32]) {
        let (query, kv, d) = (self.query_width(), self.kv_width(), self.head_dim);
        let rows = qkv.chunks_exact_mut(query + 2 * kv);
        let rows = rows.zip(gates.chunks_exact_mut(query));
        for ((qkv, gates), raw) in rows.zip(raw.chunks_exact(2 * (query + kv))) {
            for (head, both) in raw[..2 * query].chunks_exact(2 * d).enumerate() {
                qkv[head * d..][..d].copy_from_slice(&both[..d]);
                gates[head * d..][..d].copy_from_slice(&both[d..]);
            }
            qkv[query..].copy_from_slice(&raw[2 * query..]);
        }
    }

    /// Undoes [`part_gates`](Self::part_gates), with gradients.
    pub(super) fn join_gates(&self, d_qkv: &[f32], d_gates: &[f32], raw: &mut [f32]) {
        let (query, kv, d) = (self.query_width(), self.kv_width(), self.head_dim);
        let rows = d_qkv.chunks_exact(query + 2 * kv);
        let rows = rows.zip(d_gates.chunks_exact(query));
        for ((qkv, gates), raw) in rows.zip(raw.chunks_exact_mut(2 * (query + kv))) {
            for (head, both) in raw[..2 * query].chunks_exact_mut(2 * d).enumerate() {
                both[..d].copy_from_slice(&qkv[head * d..][..d]);
                both[d..].copy_from_slice(&gates[head * d..][..d]);
            }
            raw[2 * query..].copy_from_slice(&qkv[query..]);
        }
    }

    /// Multiplies the outputs of attention by the sigmoid of their gates.
    pub(super) fn gate(&self, kept: &FullAttentionKept, gated: &mut Vec<f32>) {
        let query = self.query_width();
        let attended = kept.attended.as_mat();
        sized(gated, kept.gates.values.len())
            .par_chunks_exact_mut(query)
            .with_min_len(rows_per_task(4 * query))
            .zip(kept.gates.values.par_chunks_exact(query))
            .enumerate()
            .for_each(|(row, (to, gates))| {
                for ((to, &o), &gate) in to.iter_mut().zip(attended.row(row)).zip(gates) {
                    *to = o / (1.0 + exp(-gate));
                }
            });
    }
}

/// Turns gradients of gated outputs into those of the outputs, and writes those of the gates.
pub(super) fn gates_backward(
    kept: &FullAttentionKept,
    d_attended: &mut [f32],
    d_gates: &mut [f32],
) {
    let (query, attended) = (kept.gates.width(), kept.attended.as_mat());
    let rows = d_attended.chunks_exact_mut(query);
    let rows = rows.zip(d_gates.chunks_exact_mut(query));
    for (row, ((d_o, d_gates), gates)) in
        rows.zip(kept.gates.values.chunks_exact(query)).enumerate()
    {
        for (i, (d_o, d_gate)) in d_o.iter_mut().zip(d_gates).enumerate() {
            let sigma = 1.0 / (1.0 + exp(-gates[i]));
            *d_gate = *d_o * attended.row(row)[i] * sigma * (1.0 - sigma);
            *d_o *= sigma;
        }
    }
}
