//! How a product is cut into tasks, and one task of it.

#![expect(unsafe_code, reason = "hands strided addresses to the register tiles")]

use std::cell::RefCell;

use rayon::prelude::*;

use super::{Column, Rows, Start};
use crate::kernels::matrix::Mat;
use crate::kernels::micro::{self, Held, LANES, MOST_ROWS, TILE_ROWS, Tile};
use crate::kernels::panels::Kind;
use crate::kernels::shared::Shared;
use crate::weights::Dtype;

/// Steps of `k` between two visits of the output: 16 KiB of a widened panel.
const K_BLOCK: usize = 256;
/// Elements of a widened panel.
const PANEL_LEN: usize = K_BLOCK * LANES;
/// Panels that a tile of packed rows takes at once, where the CPU has registers for them: two fit L1.
const PANELS_AT_ONCE: usize = 2;
/// Rows of a packed block of `A`: 192 KiB with `K_BLOCK` steps.
const ROW_BLOCK: usize = 192;
/// Up to here rows are multiplied straight from the stored panels.
pub(super) const FEW_ROWS: usize = 24;
/// Products below this many multiply-adds are not worth waking another thread.
const SERIAL_WORK: usize = 1 << 17;

/// How the output is cut into tasks: a grid of row blocks and groups of panels.
pub(super) struct Cut {
    rows: usize,
    row_block: usize,
    panels: usize,
    panel_group: usize,
    parallel: bool,
}

impl Cut {
    pub(super) fn of(rows: usize, panels: usize, work: usize) -> Self {
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
        // A few panels are shared out as evenly as they can be: wide tiles gain less than an idle thread loses.
        let panel_group = panels
            .div_ceil(groups)
            .next_multiple_of(if panels >= 32 * groups { 8 } else { 1 });
        Self {
            rows,
            row_block,
            panels,
            panel_group,
            parallel: true,
        }
    }

    pub(super) fn run(&self, task: impl Fn(Rows, Rows) + Sync) {
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
pub(super) fn pack_rows(x: Mat<'_>) -> impl Fn(&Rows, usize, usize, &mut [f32]) + Sync {
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
pub(super) fn strips(
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

/// One task of a product with many rows. `first` says what becomes of what the output holds, `later` the
/// same of what the first steps of `k` have left there. `pack` fills the block of `A`; `fill` writes
/// a panel of `B` for some steps of `k` and tells which columns of the output it stands for.
pub(super) fn many_rows(
    depth: usize,
    rows: Rows,
    panels: Rows,
    y: Shared,
    (first, later): (Held, Held),
    pack: &impl Fn(&Rows, usize, usize, &mut [f32]),
    fill: impl Fn(usize, usize, usize, &mut [f32]) -> (usize, usize),
) {
    let at_once = micro::widest(TILE_ROWS, PANELS_AT_ONCE);
    SCRATCH.with_borrow_mut(|scratch| {
        let packed_len = rows.len() * K_BLOCK;
        scratch.resize(scratch.len().max(packed_len + at_once * PANEL_LEN), 0.0);
        let (packed, buffers) = scratch.split_at_mut(packed_len);
        for k0 in (0..depth).step_by(K_BLOCK) {
            let steps = K_BLOCK.min(depth - k0);
            pack(&rows, k0, steps, packed);
            for panel in panels.clone().step_by(at_once) {
                let count = at_once.min(panels.end - panel);
                let mut places = [(0, 0); PANELS_AT_ONCE];
                let filled = places[..count].iter_mut().zip(panel..);
                for ((place, panel), buffer) in filled.zip(buffers.chunks_exact_mut(PANEL_LEN)) {
                    *place = fill(panel, k0, steps, buffer);
                }
                let is_one_piece = places[..count].iter().all(|&(_, len)| len == LANES)
                    && (places[..count].windows(2)).all(|pair| pair[1].0 == pair[0].0 + LANES);
                let wide = if is_one_piece { count } else { 1 };
                for first_panel in (0..count).step_by(wide) {
                    let (column, len) = places[first_panel];
                    for (i0, height, strip) in strips(rows.clone(), steps, packed) {
                        let tile = Tile {
                            k: steps,
                            a: strip.as_ptr(),
                            a_row: 1,
                            a_step: height,
                            b: buffers[first_panel * PANEL_LEN..].as_ptr().cast(),
                            b_step: LANES,
                            b_panel: PANEL_LEN,
                            // SAFETY: this task owns the rectangle of its rows and panels.
                            c: unsafe { y.at(i0, column) },
                            c_row: y.stride(),
                            held: if k0 == 0 { first } else { later },
                        };
                        // SAFETY: the strip and the panels hold `steps` steps; the output has `len` columns here,
                        // or all of the panels that are one piece.
                        unsafe { clipped(Dtype::F32, height, wide, len, tile) };
                    }
                }
            }
        }
    });
}

/// One task of a product with few rows: tiles straight from the stored panels.
pub(super) fn few_rows<'w>(
    x: Mat<'_>,
    rows: Rows,
    panels: Rows,
    panel_at: &impl Fn(usize) -> Column<'w>,
    y: Shared,
    start: Start,
) {
    let strip_count = rows.len().div_ceil(micro::most_rows());
    let height = rows.len().div_ceil(strip_count);
    let inputs = x.cols();
    let mut panel = panels.start;
    while panel < panels.end {
        let column = panel_at(panel);
        let weight = column.weight;
        let Kind::Plain(dtype) = weight.kind() else {
            unreachable!("the panels of this task are plain numbers")
        };
        let whole = weight.outputs() / LANES;
        let left = whole.saturating_sub(column.panel).min(panels.end - panel);
        let wide = micro::widest(height, left);
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
                held: start.into(),
            };
            // SAFETY: `x` has these rows, the weight these panels, and the output these columns.
            unsafe { clipped(dtype, height, wide, column.len, tile) };
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
        let mut panel = 0;
        while panel < panels {
            let wide = micro::widest(rows, panels - panel);
            let step = panel * tile.b_panel * dtype.size_bytes();
            // SAFETY: some of the panels the caller vouched for.
            unsafe {
                let tile = Tile {
                    b: tile.b.add(step),
                    c: tile.c.add(panel * LANES),
                    ..tile
                };
                micro::run(dtype, rows, wide, &tile);
            }
            panel += wide;
        }
        return;
    }
    let mut edge = [0.0f32; MOST_ROWS * LANES];
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
