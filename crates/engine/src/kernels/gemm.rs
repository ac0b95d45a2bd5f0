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
//! that of one batch after the other.
//!
//! Many rows follow the classic blocking: 256 steps of `k` at a time, a block of `A` packed into
//! strips of six rows (it stays in L2) and one widened panel of `B` (it stays in L1). Few rows, as in
//! decoding, read the stored panels directly, each once.

#![expect(unsafe_code, reason = "hands strided addresses to the register tiles")]

use std::cell::RefCell;

use rayon::prelude::*;

use super::matrix::{Mat, MatMut};
use super::micro::{self, LANES, TILE_ROWS, Tile};
use super::panels::{BLOCK, Panels};
use super::shared::Shared;
use crate::weights::Dtype;

/// Steps of `k` between two visits of the output: 16 KiB of a widened panel.
const K_BLOCK: usize = 256;
/// Rows of a packed block of `A`: 192 KiB with `K_BLOCK` steps.
const ROW_BLOCK: usize = 192;
/// Up to here rows are multiplied straight from the stored panels.
const FEW_ROWS: usize = 24;
/// Up to here outputs are too narrow to make packing the rows worth while.
const FEW_PANELS: usize = 3;
/// Products below this many multiply-adds are not worth waking another thread.
const SERIAL_WORK: usize = 1 << 17;

/// Whether a product starts from zero or continues what the output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Zero,
    Keep,
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
    let cut = Cut::of(rows, count, rows * inputs * width);
    cut.run(|row_range, panel_range| {
        if rows <= FEW_ROWS || count <= FEW_PANELS {
            few_rows(x, row_range, panel_range, &panel_at, y, start);
        } else {
            many_rows(
                x.cols(),
                row_range,
                panel_range,
                y,
                start,
                &pack_rows(x),
                |panel, k0, depth, buffer| {
                    let column = panel_at(panel);
                    column
                        .weight
                        .widen(column.panel, k0, &mut buffer[..depth * LANES]);
                    (column.start, column.len)
                },
            );
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
    let cut = Cut::of(rows, inputs.div_ceil(LANES), rows * inputs * outputs);
    cut.run(|row_range, panel_range| {
        many_rows(
            outputs,
            row_range,
            panel_range,
            dx,
            start,
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
            Start::Keep,
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

/// How the output is cut into tasks: a grid of row blocks and groups of panels.
struct Cut {
    rows: usize,
    row_block: usize,
    panels: usize,
    panel_group: usize,
    parallel: bool,
}

impl Cut {
    fn of(rows: usize, panels: usize, work: usize) -> Self {
        let threads = rayon::current_num_threads();
        if threads == 1 || work < SERIAL_WORK {
            return Self {
                rows,
                row_block: rows.min(ROW_BLOCK),
                panels,
                panel_group: panels,
                parallel: false,
            };
        }
        // Rows first: a task then packs its block of A once. Only what rows cannot give is taken
        // from the panels; twice as many tasks as threads leave something to steal.
        let wanted = 2 * threads;
        let row_blocks = rows
            .div_ceil(ROW_BLOCK)
            .next_multiple_of(if rows > FEW_ROWS * wanted { wanted } else { 1 });
        let row_block = rows
            .div_ceil(row_blocks)
            .next_multiple_of(TILE_ROWS)
            .min(ROW_BLOCK.max(rows.div_ceil(row_blocks)));
        let row_blocks = rows.div_ceil(row_block);
        let groups = wanted.div_ceil(row_blocks).max(1);
        let panel_group = panels
            .div_ceil(groups)
            .next_multiple_of(if panels >= 4 * groups { 4 } else { 1 });
        Self {
            rows,
            row_block,
            panels,
            panel_group,
            parallel: true,
        }
    }

    fn run(&self, task: impl Fn(Rows, Rows) + Sync) {
        let row_blocks = self.rows.div_ceil(self.row_block);
        let groups = self.panels.div_ceil(self.panel_group);
        let one = |index: usize| {
            let (row, group) = (
                index % row_blocks * self.row_block,
                index / row_blocks * self.panel_group,
            );
            task(
                row..(row + self.row_block).min(self.rows),
                group..(group + self.panel_group).min(self.panels),
            );
        };
        let tasks = row_blocks * groups;
        if self.parallel && tasks > 1 {
            (0..tasks).into_par_iter().with_max_len(1).for_each(one);
        } else {
            (0..tasks).for_each(one);
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Packs rows of a matrix into strips of six, ordered by `k`, so that a tile reads straight on.
fn pack_rows(x: Mat<'_>) -> impl Fn(&Rows, usize, usize, &mut [f32]) + Sync {
    move |rows, k0, depth, to| {
        for (i0, height, strip) in strips(rows.clone(), depth, to) {
            let row = |i: usize| &x.row(i0 + i)[k0..k0 + depth];
            if height == TILE_ROWS {
                let rows = [row(0), row(1), row(2), row(3), row(4), row(5)];
                interleave(rows, strip);
            } else {
                for i in 0..height {
                    for (to, &from) in strip[i..].iter_mut().step_by(height).zip(row(i)) {
                        *to = from;
                    }
                }
            }
        }
    }
}

/// Writes element `k` of all six rows side by side, for each `k`.
fn interleave(rows: [&[f32]; TILE_ROWS], to: &mut [f32]) {
    let (to, _) = to.as_chunks_mut::<TILE_ROWS>();
    let [a, b, c, d, e, f] = rows.map(|row| &row[..to.len()]);
    for (k, to) in to.iter_mut().enumerate() {
        *to = [a[k], b[k], c[k], d[k], e[k], f[k]];
    }
}

/// Cuts a packed block into its strips: first row, number of rows, and `depth × rows` elements.
fn strips(
    rows: Rows,
    depth: usize,
    packed: &mut [f32],
) -> impl Iterator<Item = (usize, usize, &mut [f32])> {
    let len = rows.len();
    packed[..len * depth]
        .chunks_mut(TILE_ROWS * depth)
        .enumerate()
        .map(move |(strip, data)| {
            let at = strip * TILE_ROWS;
            (rows.start + at, TILE_ROWS.min(len - at), data)
        })
}

/// One task of a product with many rows. `pack` fills the block of `A`; `fill` writes a panel of `B`
/// for some steps of `k` and tells which columns of the output it stands for.
fn many_rows(
    depth: usize,
    rows: Rows,
    panels: Rows,
    y: Shared,
    start: Start,
    pack: &impl Fn(&Rows, usize, usize, &mut [f32]),
    fill: impl Fn(usize, usize, usize, &mut [f32]) -> (usize, usize),
) {
    SCRATCH.with_borrow_mut(|scratch| {
        let packed_len = rows.len() * K_BLOCK;
        scratch.resize(scratch.len().max(packed_len + K_BLOCK * LANES), 0.0);
        let (packed, panel_buffer) = scratch.split_at_mut(packed_len);
        for k0 in (0..depth).step_by(K_BLOCK) {
            let steps = K_BLOCK.min(depth - k0);
            pack(&rows, k0, steps, packed);
            for panel in panels.clone() {
                let (column, len) = fill(panel, k0, steps, panel_buffer);
                for (i0, height, strip) in strips(rows.clone(), steps, packed) {
                    let tile = Tile {
                        k: steps,
                        a: strip.as_ptr(),
                        a_row: 1,
                        a_step: height,
                        b: panel_buffer.as_ptr().cast(),
                        b_step: LANES,
                        b_panel: 0,
                        // SAFETY: this task owns the rectangle of its rows and panels.
                        c: unsafe { y.at(i0, column) },
                        c_row: y.stride(),
                        keep: k0 > 0 || start == Start::Keep,
                    };
                    // SAFETY: the strip and the panel hold `steps` steps; the output has `len` columns here.
                    unsafe { clipped(Dtype::F32, height, 1, len, tile) };
                }
            }
        }
    });
}

/// One task of a product with few rows: tiles straight from the stored panels.
fn few_rows<'w>(
    x: Mat<'_>,
    rows: Rows,
    panels: Rows,
    panel_at: &impl Fn(usize) -> Column<'w>,
    y: Shared,
    start: Start,
) {
    let strip_count = rows.len().div_ceil(TILE_ROWS);
    let height = rows.len().div_ceil(strip_count);
    let inputs = x.cols();
    let mut panel = panels.start;
    while panel < panels.end {
        let column = panel_at(panel);
        let weight = column.weight;
        let wide = match height {
            1 => 4,
            2 | 3 => 2,
            _ => 1,
        };
        let fits = column.panel + wide <= weight.count()
            && panel + wide <= panels.end
            && (column.panel + wide) * LANES <= weight.outputs();
        let wide = if fits { wide } else { 1 };
        for i0 in rows.clone().step_by(height) {
            let height = height.min(rows.end - i0);
            let tile = Tile {
                k: inputs,
                a: x.row(i0).as_ptr(),
                a_row: x.stride(),
                a_step: 1,
                b: weight.address(
                    column.panel,
                    0,
                    weight.panel_len() * (wide - 1) + inputs * LANES,
                ),
                b_step: LANES,
                b_panel: weight.panel_len(),
                // SAFETY: this task owns the rectangle of its rows and panels.
                c: unsafe { y.at(i0, column.start) },
                c_row: y.stride(),
                keep: start == Start::Keep,
            };
            // SAFETY: `x` has these rows, the weight these panels, and the output these columns.
            unsafe { clipped(weight.dtype(), height, wide, column.len, tile) };
        }
        panel += wide;
    }
}

/// Runs a tile whose last panel may be cut short by the edge of the output.
///
/// # Safety
/// As for [`micro::run`], with only `len` columns of `C` when there is a single panel.
unsafe fn clipped(dtype: Dtype, rows: usize, panels: usize, len: usize, tile: Tile) {
    if len == LANES || panels > 1 {
        let single = panels > 1 && !matches!((rows, panels), (1, 4) | (2 | 3, 2));
        if !single {
            // SAFETY: passed on to the caller.
            return unsafe { micro::run(dtype, rows, panels, &tile) };
        }
        for panel in 0..panels {
            let step = panel * tile.b_panel * dtype.size_bytes();
            // SAFETY: one of the panels the caller vouched for.
            unsafe {
                let tile = Tile {
                    b: tile.b.add(step),
                    c: tile.c.add(panel * LANES),
                    ..tile
                };
                micro::run(dtype, rows, 1, &tile);
            }
        }
        return;
    }
    let mut edge = [0.0f32; TILE_ROWS * LANES];
    // SAFETY: the edge buffer holds whole rows; only `len` columns of each are copied in and out.
    unsafe {
        for i in 0..rows {
            std::ptr::copy_nonoverlapping(
                tile.c.add(i * tile.c_row),
                edge.as_mut_ptr().add(i * LANES),
                len,
            );
        }
        micro::run(
            dtype,
            rows,
            1,
            &Tile {
                c: edge.as_mut_ptr(),
                c_row: LANES,
                ..tile
            },
        );
        for i in 0..rows {
            std::ptr::copy_nonoverlapping(
                edge.as_ptr().add(i * LANES),
                tile.c.add(i * tile.c_row),
                len,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::check::{in_pool, values};
    use crate::weights::TensorView;

    fn panels(values: &[f32], outputs: usize, inputs: usize, dtype: Dtype) -> (Panels, Vec<f32>) {
        let tensor = TensorView::from_f32("w", dtype, vec![outputs, inputs], values).unwrap();
        (Panels::from_tensor(&tensor, dtype), tensor.to_f32())
    }

    fn close(got: &[f32], expected: impl Fn(usize, usize) -> f64, cols: usize, what: &str) {
        for (i, &got) in got.iter().enumerate() {
            let expected = expected(i / cols, i % cols);
            assert!(
                (f64::from(got) - expected).abs() < 2e-4,
                "{what} at {i}: {got} instead of {expected}"
            );
        }
    }

    #[test]
    fn all_three_products_agree_with_plain_sums_for_odd_shapes() {
        for (rows, inputs, outputs) in [
            (1, 19, 70),
            (7, 300, 33),
            (25, 16, 16),
            (61, 530, 48),
            (400, 40, 50),
        ] {
            for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                let case = format!("{rows}x{inputs}x{outputs} {dtype:?}");
                let x = values(rows * inputs, 1);
                let dy = values(rows * outputs, 2);
                let (packed, w) = panels(&values(outputs * inputs, 3), outputs, inputs, dtype);
                let f = |x: &[f32], i: usize| f64::from(x[i]);

                let mut y = vec![0.5; rows * outputs];
                project(
                    Mat::new(&x, rows, inputs),
                    &[&packed],
                    MatMut::new(&mut y, rows, outputs),
                    Start::Keep,
                );
                let expected = |m: usize, o: usize| {
                    0.5 + (0..inputs)
                        .map(|i| f(&x, m * inputs + i) * f(&w, o * inputs + i))
                        .sum::<f64>()
                };
                close(&y, expected, outputs, &format!("project {case}"));

                let mut dx = vec![f32::NAN; rows * inputs];
                project_back(
                    Mat::new(&dy, rows, outputs),
                    &packed,
                    MatMut::new(&mut dx, rows, inputs),
                    Start::Zero,
                );
                let expected = |m: usize, i: usize| {
                    (0..outputs)
                        .map(|o| f(&dy, m * outputs + o) * f(&w, o * inputs + i))
                        .sum::<f64>()
                };
                close(&dx, expected, inputs, &format!("project_back {case}"));

                let mut g = vec![1.0; outputs * inputs];
                outer(
                    Mat::new(&dy, rows, outputs),
                    Mat::new(&x, rows, inputs),
                    MatMut::new(&mut g, outputs, inputs),
                );
                let expected = |o: usize, i: usize| {
                    1.0 + (0..rows)
                        .map(|m| f(&dy, m * outputs + o) * f(&x, m * inputs + i))
                        .sum::<f64>()
                };
                close(&g, expected, inputs, &format!("outer {case}"));
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_batch_and_with_any_number_of_threads() {
        let (rows, inputs, outputs) = (500, 700, 160);
        let x = values(rows * inputs, 4);
        let (packed, _) = panels(&values(outputs * inputs, 5), outputs, inputs, Dtype::Bf16);
        let (other, _) = panels(&values(48 * inputs, 6), 48, inputs, Dtype::Bf16);
        let run = |from: usize, rows: usize| {
            let mut y = vec![0.0; rows * (outputs + 48)];
            let x = Mat::new(&x[from * inputs..], rows, inputs);
            project(
                x,
                &[&packed, &other],
                MatMut::new(&mut y, rows, outputs + 48),
                Start::Zero,
            );
            y
        };
        let whole = in_pool(1, || run(0, rows));
        for threads in [2, 3] {
            assert_eq!(
                whole,
                in_pool(threads, || run(0, rows)),
                "{threads} threads"
            );
        }
        let width = outputs + 48;
        for (from, count) in [(0, 1), (17, 2), (33, 3), (40, 13), (100, 24), (123, 200)] {
            assert_eq!(
                whole[from * width..(from + count) * width],
                in_pool(2, || run(from, count)),
                "{count} rows at {from}"
            );
        }
    }

    #[test]
    fn a_gradient_continues_where_the_previous_call_stopped() {
        let (rows, left, right) = (301, 18, 90);
        let (p, q) = (values(rows * left, 7), values(rows * right, 8));
        let run = |parts: &[(usize, usize)]| {
            let mut g = vec![0.0; left * right];
            for &(from, to) in parts {
                let p = Mat::new(&p[from * left..], to - from, left);
                outer(
                    p,
                    Mat::new(&q[from * right..], to - from, right),
                    MatMut::new(&mut g, left, right),
                );
            }
            g
        };
        let once = in_pool(1, || run(&[(0, rows)]));
        assert_eq!(once, in_pool(2, || run(&[(0, 100), (100, rows)])));
        assert_eq!(once, in_pool(3, || run(&[(0, 7), (7, 263), (263, rows)])));
    }
}
