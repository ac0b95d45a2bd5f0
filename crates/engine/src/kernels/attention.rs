//! Causal attention of query heads over the keys and values of one key head.
//!
//! ```text
//! s_ij = q_i · k_j      p_ij = exp(c (s_ij − max_j s_ij)) for j ≤ position of i      o_i = Σ_j p_ij v_j / Σ_j p_ij
//! lse_i = c · max_j s_ij + ln Σ_j p_ij      c = 1 / √d
//! ```
//!
//! With a window `w`, row `i` sees the last `w` positions only. With a bound `b`, `c s_ij` becomes
//! `b tanh(c s_ij / b)`. A sink is one more score of a row, which has no value: its share is lost.
//!
//! All scores of a tile of queries are computed before their soft-max. Nothing is rescaled on the way,
//! so a row's result does not depend on the tile it is in, nor on how its keys are cut into blocks:
//! training, prefill and decoding give the same bits.
//!
//! Keys and values come in [`Block`]s. Keys are stored like weights, in panels of 16 positions ordered
//! by dimension; values are rows padded to 16. The cache of a sampled sequence is a list of such blocks,
//! and training packs each sequence into one.

use super::cached::Numbers;
use super::gemm::Start;
use super::micro::LANES;
use super::small::{self, Left, Right};
use super::softmax;

/// Queries of a tile in training and prefill.
pub(crate) const TILE: usize = 64;

/// Keys and values of consecutive positions for one key head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    /// `⌈len / 16⌉` panels of `d × 16`.
    pub(crate) keys: Numbers<'a>,
    /// Rows of `d` rounded up to 16.
    pub(crate) values: Numbers<'a>,
    /// Positions that hold something.
    pub(crate) len: usize,
}

/// Elements of the keys of a block with room for `positions`.
pub(crate) fn keys_len(positions: usize, d: usize) -> usize {
    positions.next_multiple_of(LANES) * d
}

/// Elements of the values of a block with room for `positions`.
pub(crate) fn values_len(positions: usize, d: usize) -> usize {
    positions * d.next_multiple_of(LANES)
}

/// Stores the key of one position in a block.
pub(crate) fn store_key(keys: &mut [f32], at: usize, key: &[f32]) {
    let panel = &mut keys[at / LANES * LANES * key.len()..][..LANES * key.len()];
    for (to, &from) in panel[at % LANES..].iter_mut().step_by(LANES).zip(key) {
        *to = from;
    }
}

/// Stores the value of one position in a block.
pub(crate) fn store_value(values: &mut [f32], at: usize, value: &[f32]) {
    let padded = value.len().next_multiple_of(LANES);
    values[at * padded..][..value.len()].copy_from_slice(value);
}

/// What becomes of a score, and which there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scoring {
    /// The factor `c`.
    pub(crate) scale: f32,
    /// Positions that a row sees, its own included.
    pub(crate) window: Option<usize>,
    /// The bound `b`.
    pub(crate) softcap: Option<f32>,
}

/// The queries of one call.
///
/// Either consecutive positions of one head (`position_step` 1), or all heads that share the keys at
/// one position (`position_step` 0), as in decoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries<'a> {
    /// Rows of `d` elements, `stride` apart.
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) d: usize,
    /// Position of the first row.
    pub(crate) position: usize,
    pub(crate) position_step: usize,
    /// The sinks of the heads that the rows are of, or nothing.
    pub(crate) sinks: &'a [f32],
}

impl Queries<'_> {
    /// Number of keys that row `i` sees.
    fn visible(&self, i: usize) -> usize {
        self.position + i * self.position_step + 1
    }

    fn widest(&self) -> usize {
        self.visible(self.rows - 1)
    }

    /// First key that row `i` sees.
    fn first(&self, i: usize, window: Option<usize>) -> usize {
        window.map_or(0, |window| self.visible(i).saturating_sub(window))
    }

    /// Keys before this one are seen by no row; panels are whole.
    fn skipped(&self, window: Option<usize>) -> usize {
        self.first(0, window) / LANES * LANES
    }

    fn sink(&self, i: usize) -> Option<f32> {
        self.sinks.get(i * (1 - self.position_step)).copied()
    }
}

/// Leaves out the first `skipped` positions, a multiple of 16.
fn after<'b>(
    blocks: impl Iterator<Item = Block<'b>> + Clone,
    mut skipped: usize,
    d: usize,
) -> impl Iterator<Item = Block<'b>> + Clone {
    blocks.filter_map(move |block| {
        let cut = skipped.min(block.len);
        skipped -= cut;
        (cut < block.len).then(|| Block {
            keys: block.keys.after(cut, d),
            values: block.values.after(cut, d.next_multiple_of(LANES)),
            len: block.len - cut,
        })
    })
}

/// Buffers of one thread, grown to the largest tile seen.
#[derive(Debug, Default)]
pub(crate) struct AttentionScratch {
    scores: Vec<f32>,
    output: Vec<f32>,
    /// Keys or values of a block that is held in numbers which products do not read.
    widened: Vec<f32>,
}

/// Computes the attention of some queries; `write(row, output, lse)` receives each result.
pub(crate) fn forward<'b>(
    queries: Queries<'_>,
    blocks: impl Iterator<Item = Block<'b>> + Clone,
    scoring: Scoring,
    scratch: &mut AttentionScratch,
    mut write: impl FnMut(usize, &[f32], f32),
) {
    let Queries { rows, d, .. } = queries;
    let Scoring { window, .. } = scoring;
    let skipped = queries.skipped(window);
    let blocks = after(blocks, skipped, d);
    let seen = queries.widest() - skipped;
    let width = seen.next_multiple_of(LANES);
    let padded = d.next_multiple_of(LANES);
    grow(&mut scratch.scores, rows * width);
    grow(&mut scratch.output, rows * padded);
    let scores = &mut scratch.scores[..rows * width];
    let output = &mut scratch.output[..rows * padded];
    let mut sums = [(0.0f32, 0.0f32); TILE];

    let widened = &mut scratch.widened;
    compute_scores(queries, blocks.clone(), scores, width, seen, widened);
    for (i, sums) in sums[..rows].iter_mut().enumerate() {
        let row = &mut scores[i * width..(i + 1) * width];
        let (row, hidden) = row.split_at_mut(queries.visible(i) - skipped);
        hidden.fill(0.0);
        let (hidden, row) = row.split_at_mut(queries.first(i, window) - skipped);
        hidden.fill(0.0);
        let scale = match scoring.softcap {
            None => scoring.scale,
            Some(cap) => {
                softmax::cap(row, scoring.scale, cap);
                1.0
            }
        };
        let shift = softmax::max(row);
        let sum = softmax::exp_in_place(row, scale, shift);
        let lse = scale.mul_add(shift, sum.ln());
        *sums = match queries.sink(i) {
            None => (1.0 / sum, lse),
            Some(sink) => {
                let (small, large) = (lse.min(sink), lse.max(sink));
                let all = large + (small - large).exp().ln_1p();
                ((lse - all).exp() / sum, all)
            }
        };
    }
    let mut first = 0;
    for block in blocks {
        let depth = block.len.min(seen - first);
        let start = if first == 0 { Start::Zero } else { Start::Keep };
        let a = Left {
            data: &scores[first..],
            row: width,
            step: 1,
        };
        let b = Right {
            data: block.values.values(depth, padded, widened),
            step: padded,
            panel: LANES,
        };
        small::product(rows, depth, padded / LANES, a, b, output, padded, start);
        first += depth;
        if first == seen {
            break;
        }
    }
    assert_eq!(
        first, seen,
        "the blocks end before the last query's position"
    );
    for (i, (row, &(inverse, lse))) in output.chunks_exact_mut(padded).zip(&sums).enumerate() {
        row.iter_mut().for_each(|o| *o *= inverse);
        write(i, &row[..d], lse);
    }
}

/// Fills `scores` (rows of `width`) with `q · k` for the panels of the first `widest` positions.
pub(super) fn compute_scores<'b>(
    queries: Queries<'_>,
    blocks: impl Iterator<Item = Block<'b>>,
    scores: &mut [f32],
    width: usize,
    widest: usize,
    widened: &mut Vec<f32>,
) {
    let (rows, d) = (queries.rows, queries.d);
    let mut first = 0;
    for block in blocks {
        let len = block.len.min(widest - first);
        let b = Right {
            data: block.keys.keys(len, d, widened),
            step: LANES,
            panel: d * LANES,
        };
        let a = Left {
            data: queries.data,
            row: queries.stride,
            step: 1,
        };
        small::product(
            rows,
            d,
            len.div_ceil(LANES),
            a,
            b,
            &mut scores[first..],
            width,
            Start::Zero,
        );
        first += len;
        if first == widest {
            break;
        }
    }
}

pub(super) fn grow(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check;

    /// Packs keys and values of `t` positions into blocks of `per_block`.
    fn blocks(
        k: &[f32],
        v: &[f32],
        t: usize,
        d: usize,
        per_block: usize,
    ) -> Vec<(Vec<f32>, Vec<f32>, usize)> {
        (0..t)
            .step_by(per_block)
            .map(|first| {
                let len = per_block.min(t - first);
                let mut keys = vec![0.0; keys_len(per_block, d)];
                let mut values = vec![0.0; values_len(per_block, d)];
                for at in 0..len {
                    store_key(&mut keys, at, &k[(first + at) * d..][..d]);
                    store_value(&mut values, at, &v[(first + at) * d..][..d]);
                }
                (keys, values, len)
            })
            .collect()
    }

    fn view(blocks: &[(Vec<f32>, Vec<f32>, usize)]) -> impl Iterator<Item = Block<'_>> + Clone {
        blocks.iter().map(|(keys, values, len)| Block {
            keys: Numbers::F32(keys),
            values: Numbers::F32(values),
            len: *len,
        })
    }

    #[test]
    fn rows_match_a_plain_softmax_whatever_the_tile_and_the_blocks() {
        for (t, d) in [(5, 8), (33, 16), (70, 24), (130, 64)] {
            let (q, k, v) = (
                check::values(t * d, 1),
                check::values(t * d, 2),
                check::values(t * d, 3),
            );
            let scale = 1.0 / (d as f32).sqrt();
            let scoring = Scoring {
                scale,
                window: None,
                softcap: None,
            };
            let run = |from: usize, rows: usize, per_block: usize| {
                let blocks = blocks(&k, &v, t, d, per_block);
                let mut out = vec![0.0; rows * d];
                let queries = Queries {
                    data: &q[from * d..],
                    stride: d,
                    rows,
                    d,
                    position: from,
                    position_step: 1,
                    sinks: &[],
                };
                forward(
                    queries,
                    view(&blocks),
                    scoring,
                    &mut AttentionScratch::default(),
                    |i, o, _| {
                        out[i * d..(i + 1) * d].copy_from_slice(o);
                    },
                );
                out
            };
            let tile = t.min(TILE);
            let whole = run(t - tile, tile, t);
            for i in 0..tile {
                let position = t - tile + i;
                let s: Vec<f64> = (0..=position)
                    .map(|j| {
                        (0..d)
                            .map(|c| f64::from(q[position * d + c]) * f64::from(k[j * d + c]))
                            .sum::<f64>()
                    })
                    .map(|s| (s * f64::from(scale)).exp())
                    .collect();
                let total: f64 = s.iter().sum();
                for c in 0..d {
                    let expected = (0..=position)
                        .map(|j| s[j] * f64::from(v[j * d + c]))
                        .sum::<f64>()
                        / total;
                    assert!(
                        (f64::from(whole[i * d + c]) - expected).abs() < 1e-5,
                        "row {position} of {t}x{d}"
                    );
                }
                let alone = run(position, 1, 16);
                assert_eq!(
                    alone,
                    whole[i * d..(i + 1) * d],
                    "row {position} of {t}x{d} alone, in blocks of 16"
                );
            }
        }
    }
}
