//! The three matrix products of a linear layer, on all threads of the current pool.
//!
//! ```text
//! project          Y[m][o] ← start + Σ_i X[m][i] · W[o][i]      W in panels, read as stored
//! project_back     X'[m][i] ← start + Σ_o Y'[m][o] · W[o][i]    the same panels, blocks turned around
//! outer            G[i][j] ← G[i][j] + Σ_m P[m][i] · Q[m][j]    gradients, rows in order
//! ```
//!
//! `start` is zero, or what the output holds (a bias, a residual, a first product). Work is cut into
//! rectangles of the output, never along the sum, so threads and tiles do not change a bit. Because
//! [`outer`] continues the sum that its output holds, the gradient of two batches in one call equals
//! that of one batch after the other. The sums of [`project_back`] are as long as a vocabulary, so it
//! adds them up in parts: one long sum would lose digits.
//!
//! Many rows follow the classic blocking: 256 steps of `k` at a time, a block of `A` packed into
//! strips of six rows (it stays in L2) and one widened panel of `B`, or two with AVX-512 (they stay in L1). Few rows, as in
//! decoding, read the stored panels directly, each once. Quantised panels are widened for two rows and more,
//! or multiplied in [eight bits](super::quantised::int8) if the model was loaded so.

mod quantised;
mod tasks;

use super::matrix::{Mat, MatMut};
use super::micro::{Held, LANES, TILE_ROWS};
use super::panels::{BLOCK, Kind, Panels};
use super::quantised::int8::Int8Rows;
use super::shared::Shared;
use quantised::{int8_rows, one_row};
use tasks::{Cut, FEW_ROWS, few_rows, many_rows, pack_rows, strips};

/// Up to here outputs are too narrow to make packing the rows worth while.
const FEW_PANELS: usize = 3;

/// Whether a product starts from zero or continues what the output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Zero,
    Keep,
}

impl From<Start> for Held {
    fn from(start: Start) -> Self {
        match start {
            Start::Zero => Self::Dropped,
            Start::Keep => Self::Continued,
        }
    }
}

/// Multiplies rows by several matrices with the same inputs: `Y = start + X · [W₀; W₁; …]ᵀ`, the
/// outputs of one matrix following those of the other in each row of `y`.
pub(crate) fn project(x: Mat<'_>, weights: &[&Panels], mut y: MatMut<'_>, start: Start) {
    let (rows, inputs) = (x.rows(), x.cols());
    let mut columns = Vec::with_capacity(weights.len());
    let (mut width, mut count) = (0, 0);
    for weight in weights {
        assert_eq!(
            weight.inputs(),
            inputs,
            "inputs of a weight and columns of x"
        );
        columns.push((count, width));
        width += weight.outputs();
        count += weight.count();
    }
    assert_eq!((y.rows(), y.cols()), (rows, width), "shape of y");
    if rows == 0 {
        return;
    }
    let y = Shared::new(&mut y);
    let panel_at = |panel: usize| {
        let which = columns.partition_point(|&(first, _)| first <= panel) - 1;
        let (first, column) = columns[which];
        Column::of(weights[which], panel - first, column)
    };
    let is_int8 = |weight: &Panels| matches!(weight.kind(), Kind::Int8(_));
    // Rounded once for all matrices and tasks.
    let int8 = (weights.iter().any(|weight| is_int8(weight))).then(|| Int8Rows::round(x));
    let cut = Cut::of(rows, count, rows * inputs * width);
    cut.run(|row_range, panel_range| {
        let mut panel = panel_range.start;
        while panel < panel_range.end {
            let kind = panel_at(panel).weight.kind();
            // Neighbours of one kind are one piece of work.
            let same = |&panel: &usize| {
                std::mem::discriminant(&panel_at(panel).weight.kind())
                    == std::mem::discriminant(&kind)
            };
            let end = (panel..panel_range.end).find(|panel| !same(panel));
            let piece = panel..end.unwrap_or(panel_range.end);
            panel = piece.end;
            let row_range = row_range.clone();
            match (kind, &int8) {
                (Kind::Int8(_), Some(x)) => int8_rows(x, row_range, piece, &panel_at, y, start),
                (Kind::Widened(_), _) if rows == 1 => one_row(x, piece, &panel_at, y, start),
                (Kind::Plain(_), _) if rows <= FEW_ROWS || count <= FEW_PANELS => {
                    few_rows(x, row_range, piece, &panel_at, y, start);
                }
                _ => many_rows(
                    x.cols(),
                    row_range,
                    piece,
                    y,
                    (start.into(), Held::Continued),
                    &pack_rows(x),
                    |panel, k0, depth, buffer| {
                        let column = panel_at(panel);
                        column
                            .weight
                            .widen(column.panel, k0, &mut buffer[..depth * LANES]);
                        (column.start, column.len)
                    },
                ),
            }
        }
    });
}

/// Multiplies by the matrix itself: `X' = start + Y' · W`, from the gradient of outputs to that of inputs.
pub(crate) fn project_back(dy: Mat<'_>, weight: &Panels, mut dx: MatMut<'_>, start: Start) {
    let (rows, inputs, outputs) = (dy.rows(), weight.inputs(), weight.outputs());
    assert_eq!(
        dy.cols(),
        outputs,
        "columns of dy and outputs of the weight"
    );
    assert_eq!((dx.rows(), dx.cols()), (rows, inputs), "shape of dx");
    if rows == 0 {
        return;
    }
    let dx = Shared::new(&mut dx);
    let first = match start {
        Start::Zero => Held::Dropped,
        Start::Keep => Held::Added,
    };
    let cut = Cut::of(rows, inputs.div_ceil(LANES), rows * inputs * outputs);
    cut.run(|row_range, panel_range| {
        many_rows(
            outputs,
            row_range,
            panel_range,
            dx,
            (first, Held::Added),
            &pack_rows(dy),
            |q, k0, depth, buffer| {
                for (block, to) in buffer[..depth.next_multiple_of(LANES) * LANES]
                    .chunks_mut(BLOCK)
                    .enumerate()
                {
                    weight.transposed_block(k0 / LANES + block, q, to);
                }
                (q * LANES, LANES.min(inputs - q * LANES))
            },
        );
    });
}

/// Adds the products of two columns over all rows to a gradient: `G += Pᵀ · Q`.
pub(crate) fn outer(p: Mat<'_>, q: Mat<'_>, mut g: MatMut<'_>) {
    let depth = p.rows();
    assert_eq!(depth, q.rows(), "rows of both factors");
    assert_eq!(
        (g.rows(), g.cols()),
        (p.cols(), q.cols()),
        "shape of the gradient"
    );
    if depth == 0 {
        return;
    }
    let (rows, cols) = (g.rows(), g.cols());
    let g = Shared::new(&mut g);
    let cut = Cut::of(rows, cols.div_ceil(LANES), rows * cols * depth);
    let pack = |rows: &Rows, k0: usize, depth: usize, to: &mut [f32]| {
        for (i0, height, strip) in strips(rows.clone(), depth, to) {
            if let (TILE_ROWS, (steps, [])) = (height, strip.as_chunks_mut::<TILE_ROWS>()) {
                for (k, to) in steps.iter_mut().enumerate() {
                    *to = *p.row(k0 + k)[i0..].first_chunk().expect("a whole strip");
                }
            } else {
                for (k, to) in strip.chunks_exact_mut(height).enumerate() {
                    to.copy_from_slice(&p.row(k0 + k)[i0..i0 + height]);
                }
            }
        }
    };
    cut.run(|row_range, panel_range| {
        many_rows(
            depth,
            row_range,
            panel_range,
            g,
            (Held::Continued, Held::Continued),
            &pack,
            |panel, k0, depth, buffer| {
                let (from, len) = (panel * LANES, LANES.min(cols - panel * LANES));
                let (steps, _) = buffer[..depth * LANES].as_chunks_mut::<LANES>();
                for (k, to) in steps.iter_mut().enumerate() {
                    let row = &q.row(k0 + k)[from..from + len];
                    match row.as_array() {
                        Some(whole) => *to = *whole,
                        None => {
                            to[..len].copy_from_slice(row);
                            to[len..].fill(0.0);
                        }
                    }
                }
                (from, len)
            },
        );
    });
}

type Rows = std::ops::Range<usize>;

/// Where one panel of a weight lands in the output.
struct Column<'a> {
    weight: &'a Panels,
    panel: usize,
    start: usize,
    len: usize,
}

impl<'a> Column<'a> {
    fn of(weight: &'a Panels, panel: usize, column: usize) -> Self {
        let len = LANES.min(weight.outputs() - panel * LANES);
        Self {
            weight,
            panel,
            start: column + panel * LANES,
            len,
        }
    }
}

#[cfg(test)]
mod tests;
