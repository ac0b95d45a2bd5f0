//! Gradients of causal attention for one key head and the query heads that share it.
//!
//! With `p_ij = exp(c s_ij − lse_i)` recomputed from the kept log-sum-exp:
//!
//! ```text
//! dp_ij = do_i · v_j      D_i = do_i · o_i      ds_ij = c p_ij (dp_ij − D_i)
//! dq_i = Σ_j ds_ij k_j      dk_j = Σ_i ds_ij q_i      dv_j = Σ_i p_ij do_i
//! ```
//!
//! A bound of the scores adds its own derivative, `1 − tanh²`, to `ds`. A sink is in `lse` and needs no more.
//!
//! Heads and tiles of queries are visited in order by one task, so the sums of `dk` and `dv` are fixed.

use super::attention::{
    Block, Queries, Scoring, TILE, compute_scores, grow, keys_len, store_key, values_len,
};
use super::cached::{Numbers, Plain};
use super::gemm::Start;
use super::matrix::Mat;
use super::micro::LANES;
use super::small::{self, Left, Right};
use super::softmax;

/// One sequence and one key head. Matrices have a row a position.
pub(crate) struct Group<'a> {
    /// Rotated queries of the `heads` query heads, side by side.
    pub(crate) q: Mat<'a>,
    /// Rotated keys and values.
    pub(crate) k: Mat<'a>,
    pub(crate) v: Mat<'a>,
    /// Outputs of the forward pass and their gradients, laid out like `q`.
    pub(crate) o: Mat<'a>,
    pub(crate) d_o: Mat<'a>,
    /// Log-sum-exp of the forward pass: a column a query head.
    pub(crate) lse: Mat<'a>,
    pub(crate) heads: usize,
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(crate) struct AttentionBackwardScratch {
    key_panels: Vec<f32>,
    value_panels: Vec<f32>,
    keys: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
    p: Vec<f32>,
    dp: Vec<f32>,
    q: Vec<f32>,
    d_o: Vec<f32>,
    dq: Vec<f32>,
}

/// Computes the gradients; `write` receives rows: `(Target, position, gradient)`.
pub(crate) fn backward(
    group: &Group<'_>,
    scoring: Scoring,
    scratch: &mut AttentionBackwardScratch,
    mut write: impl FnMut(Target, usize, &[f32]),
) {
    let (t, d) = (group.k.rows(), group.k.cols());
    let padded = d.next_multiple_of(LANES);
    scratch.load_keys(group);
    let s = scratch;
    for buffer in [&mut s.dk, &mut s.dv] {
        buffer.clear();
        buffer.resize(t * padded, 0.0);
    }
    grow(&mut s.p, TILE * t.next_multiple_of(LANES));
    grow(&mut s.dp, TILE * t.next_multiple_of(LANES));
    for buffer in [&mut s.q, &mut s.d_o, &mut s.dq] {
        buffer.clear();
        buffer.resize(TILE * padded, 0.0);
    }
    for first in (0..t).step_by(TILE) {
        let rows = TILE.min(t - first);
        // Positions before `low` are seen by no row of the tile; panels are whole.
        let begin = |i: usize| {
            scoring
                .window
                .map_or(0, |window| (i + 1).saturating_sub(window))
        };
        let low = begin(first) / LANES * LANES;
        let seen = first + rows - low;
        let width = seen.next_multiple_of(LANES);
        for head in 0..group.heads {
            for i in 0..rows {
                let columns = head * d..(head + 1) * d;
                s.q[i * padded..][..d].copy_from_slice(&group.q.row(first + i)[columns.clone()]);
                s.d_o[i * padded..][..d].copy_from_slice(&group.d_o.row(first + i)[columns]);
            }
            let tile = |data| Queries {
                data,
                stride: padded,
                rows,
                d,
                position: first,
                position_step: 1,
                sinks: &[],
            };
            let block = |keys| Block {
                keys: Numbers::F32(keys),
                values: Numbers::F32(&[]),
                len: t - low,
            };
            compute_scores(
                tile(&s.q),
                std::iter::once(block(&s.key_panels[low * d..])),
                &mut s.p,
                width,
                seen,
                &mut Vec::new(),
            );
            compute_scores(
                tile(&s.d_o),
                std::iter::once(block(&s.value_panels[low * d..])),
                &mut s.dp,
                width,
                seen,
                &mut Vec::new(),
            );
            for i in 0..rows {
                let columns = head * d..(head + 1) * d;
                let mean =
                    softmax::dot(&s.d_o[i * padded..][..d], &group.o.row(first + i)[columns]);
                let visible = begin(first + i) - low..first + i + 1 - low;
                let (p, dp) = (
                    &mut s.p[i * width..][..width],
                    &mut s.dp[i * width..][..width],
                );
                for hidden in [0..visible.start, visible.end..width] {
                    p[hidden.clone()].fill(0.0);
                    dp[hidden].fill(0.0);
                }
                let (p, dp) = (&mut p[visible.clone()], &mut dp[visible]);
                let lse = group.lse.row(first + i)[head];
                match scoring.softcap {
                    None => {
                        softmax::probabilities(p, scoring.scale, lse);
                        softmax::backward(p, dp, mean, scoring.scale);
                    }
                    Some(cap) => {
                        softmax::cap(p, scoring.scale, cap);
                        softmax::capped_backward(p, dp, mean, scoring.scale, cap, lse);
                    }
                }
            }
            let panels = padded / LANES;
            let right = |data| Right {
                data: Plain::F32(data),
                step: padded,
                panel: LANES,
            };
            let ds = Left {
                data: &s.dp,
                row: width,
                step: 1,
            };
            small::product(
                rows,
                seen,
                panels,
                ds,
                right(&s.keys[low * padded..]),
                &mut s.dq,
                padded,
                Start::Zero,
            );
            for (i, dq) in s.dq.chunks_exact(padded).take(rows).enumerate() {
                write(Target::Query(head), first + i, &dq[..d]);
            }
            let turned = |data| Left {
                data,
                row: 1,
                step: width,
            };
            small::product(
                seen,
                rows,
                panels,
                turned(&s.dp),
                right(&s.q),
                &mut s.dk[low * padded..],
                padded,
                Start::Keep,
            );
            small::product(
                seen,
                rows,
                panels,
                turned(&s.p),
                right(&s.d_o),
                &mut s.dv[low * padded..],
                padded,
                Start::Keep,
            );
        }
    }
    for position in 0..t {
        write(Target::Key, position, &s.dk[position * padded..][..d]);
        write(Target::Value, position, &s.dv[position * padded..][..d]);
    }
}

/// Whose gradient a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Of a query head, counted within the group.
    Query(usize),
    Key,
    Value,
}

impl AttentionBackwardScratch {
    /// Packs keys and values the way the products above read them.
    fn load_keys(&mut self, group: &Group<'_>) {
        let (t, d) = (group.k.rows(), group.k.cols());
        let padded = d.next_multiple_of(LANES);
        for (buffer, len) in [
            (&mut self.key_panels, keys_len(t, d)),
            (&mut self.value_panels, keys_len(t, d)),
            (&mut self.keys, values_len(t, d)),
        ] {
            buffer.clear();
            buffer.resize(len, 0.0);
        }
        for position in 0..t {
            let key = group.k.row(position);
            store_key(&mut self.key_panels, position, key);
            store_key(&mut self.value_panels, position, group.v.row(position));
            self.keys[position * padded..][..d].copy_from_slice(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::{self, store_value};
    use crate::kernels::check;

    /// `Σ do · attention(q, k, v)` in f64, for all heads.
    fn value(
        q: &[f64],
        k: &[f64],
        v: &[f64],
        d_o: &[f32],
        (t, d, heads): (usize, usize, usize),
        scoring: Scoring,
        sink: Option<f64>,
    ) -> f64 {
        let scale = f64::from(scoring.scale);
        let bounded = |s: f64| match scoring.softcap.map(f64::from) {
            None => s,
            Some(cap) => cap * (s / cap).tanh(),
        };
        let mut total = 0.0;
        for head in 0..heads {
            for i in 0..t {
                let q = &q[i * heads * d + head * d..][..d];
                let first = scoring
                    .window
                    .map_or(0, |window| (i + 1).saturating_sub(window));
                let e: Vec<f64> = (first..=i)
                    .map(|j| {
                        let products = q.iter().zip(&k[j * d..][..d]).map(|(q, k)| q * k);
                        bounded(products.sum::<f64>() * scale).exp()
                    })
                    .collect();
                let sum: f64 = e.iter().sum::<f64>() + sink.map_or(0.0, f64::exp);
                for c in 0..d {
                    let o = (first..=i)
                        .map(|j| e[j - first] * v[j * d + c])
                        .sum::<f64>()
                        / sum;
                    total += o * f64::from(d_o[i * heads * d + head * d + c]);
                }
            }
        }
        total
    }

    #[test]
    fn gradients_match_finite_differences_for_grouped_heads() {
        for (seed, t, d, heads, window, softcap, with_sink) in [
            (1, 3, 8, 1, None, None, false),
            (2, 19, 16, 2, None, None, false),
            (3, 70, 4, 2, None, None, false),
            (4, 70, 4, 2, Some(5), None, false),
            (5, 70, 8, 1, Some(33), None, true),
            (6, 19, 8, 2, None, Some(0.5), false),
            (7, 40, 4, 1, Some(20), Some(0.7), true),
        ] {
            let sinks = [0.3];
            let wide = heads * d;
            let (q, k, v) = (
                check::values(t * wide, seed),
                check::values(t * d, seed + 1),
                check::values(t * d, seed + 2),
            );
            let d_o = check::values(t * wide, seed + 3);
            let scoring = Scoring {
                scale: 1.0 / (d as f32).sqrt(),
                window,
                softcap,
            };
            let (mut keys, mut values) = (vec![0.0; keys_len(t, d)], vec![0.0; values_len(t, d)]);
            for j in 0..t {
                store_key(&mut keys, j, &k[j * d..][..d]);
                store_value(&mut values, j, &v[j * d..][..d]);
            }
            let (mut o, mut lse) = (vec![0.0; t * wide], vec![0.0; t * heads]);
            for head in 0..heads {
                for i in 0..t {
                    let data = &q[i * wide + head * d..];
                    let queries = Queries {
                        data,
                        stride: wide,
                        rows: 1,
                        d,
                        position: i,
                        position_step: 1,
                        sinks: &sinks[..usize::from(with_sink)],
                    };
                    let block = Block {
                        keys: Numbers::F32(&keys),
                        values: Numbers::F32(&values),
                        len: t,
                    };
                    attention::forward(
                        queries,
                        std::iter::once(block),
                        scoring,
                        &mut Default::default(),
                        |_, row, l| {
                            o[i * wide + head * d..][..d].copy_from_slice(row);
                            lse[i * heads + head] = l;
                        },
                    );
                }
            }
            let group = Group {
                q: Mat::new(&q, t, wide),
                k: Mat::new(&k, t, d),
                v: Mat::new(&v, t, d),
                o: Mat::new(&o, t, wide),
                d_o: Mat::new(&d_o, t, wide),
                lse: Mat::new(&lse, t, heads),
                heads,
            };
            let (mut dq, mut dk, mut dv) =
                (vec![0.0; t * wide], vec![0.0; t * d], vec![0.0; t * d]);
            backward(
                &group,
                scoring,
                &mut AttentionBackwardScratch::default(),
                |target, i, row| match target {
                    Target::Query(head) => dq[i * wide + head * d..][..d].copy_from_slice(row),
                    Target::Key => dk[i * d..][..d].copy_from_slice(row),
                    Target::Value => dv[i * d..][..d].copy_from_slice(row),
                },
            );
            let (q, k, v) = (check::widen(&q), check::widen(&k), check::widen(&v));
            let value = |q: &[f64], k: &[f64], v: &[f64]| {
                let sink = with_sink.then_some(f64::from(sinks[0]));
                value(q, k, v, &d_o, (t, d, heads), scoring, sink)
            };
            check::gradient(&dq, &q, |q| value(q, &k, &v), "dq");
            check::gradient(&dk, &k, |k| value(&q, k, &v), "dk");
            check::gradient(&dv, &v, |v| value(&q, &k, v), "dv");
        }
    }
}
