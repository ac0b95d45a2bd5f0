//! The tasks of a product that read quantised panels directly.

#![expect(
    unsafe_code,
    reason = "reads and writes the part of a shared output that a task owns"
)]

use std::cell::RefCell;

use super::{Column, Rows, Start};
use crate::kernels::matrix::Mat;
use crate::kernels::micro::LANES;
use crate::kernels::panels::Kind;
use crate::kernels::quantised::QuantisedPanels;
use crate::kernels::quantised::int8::{INT8_ROWS, Int8Rows, Unpacked};
use crate::kernels::shared::Shared;

/// Blocks of 32 inputs between two visits of the output: 8 KiB of an unpacked panel.
const BLOCKS_AT_ONCE: usize = 16;

thread_local! {
    static UNPACKED: RefCell<Unpacked> = RefCell::new(Unpacked::default());
}

/// One row of `f32` by quantised panels.
pub(super) fn one_row<'w>(
    x: Mat<'_>,
    panels: Rows,
    panel_at: &impl Fn(usize) -> Column<'w>,
    y: Shared,
    start: Start,
) {
    for panel in panels {
        let column = panel_at(panel);
        let mut sums = [0.0; LANES];
        // SAFETY: this task owns these columns of the only row.
        unsafe { read(y, 0, &column, start, &mut sums) };
        quantised(&column).dot(column.panel, x.row(0), &mut sums);
        // SAFETY: as above.
        unsafe { write(y, 0, &column, &sums) };
    }
}

/// Rows in eight bits by quantised panels.
pub(super) fn int8_rows<'w>(
    x: &Int8Rows,
    rows: Rows,
    panels: Rows,
    panel_at: &impl Fn(usize) -> Column<'w>,
    y: Shared,
    start: Start,
) {
    let blocks = x.blocks();
    if rows.len() == 1 {
        for panel in panels {
            let column = panel_at(panel);
            let mut sums = [0.0; LANES];
            // SAFETY: this task owns the rectangle of its rows and panels.
            unsafe { read(y, rows.start, &column, start, &mut sums) };
            let row = x.row(rows.start, 0, blocks);
            quantised(&column).dot_int8(column.panel, row, &mut sums);
            // SAFETY: as above.
            unsafe { write(y, rows.start, &column, &sums) };
        }
        return;
    }
    UNPACKED.with_borrow_mut(|unpacked| {
        for first in (0..blocks).step_by(BLOCKS_AT_ONCE) {
            let count = BLOCKS_AT_ONCE.min(blocks - first);
            let start = if first == 0 { start } else { Start::Keep };
            for panel in panels.clone() {
                let column = panel_at(panel);
                let tiles = quantised(&column).unpack(column.panel, first, count, unpacked);
                for i0 in rows.clone().step_by(INT8_ROWS) {
                    let height = INT8_ROWS.min(rows.end - i0);
                    let mut sums = [[0.0; LANES]; INT8_ROWS];
                    let strip = [0, 1, 2, 3].map(|i| x.row(i0 + i.min(height - 1), first, count));
                    for (i, sums) in sums[..height].iter_mut().enumerate() {
                        // SAFETY: this task owns the rectangle of its rows and panels.
                        unsafe { read(y, i0 + i, &column, start, sums) };
                    }
                    tiles.tile(&strip[..height], &mut sums[..height]);
                    for (i, sums) in sums[..height].iter().enumerate() {
                        // SAFETY: as above.
                        unsafe { write(y, i0 + i, &column, sums) };
                    }
                }
            }
        }
    });
}

fn quantised<'w>(column: &Column<'w>) -> &'w QuantisedPanels {
    match column.weight.kind() {
        Kind::Widened(panels) | Kind::Int8(panels) => panels,
        Kind::Plain(_) => unreachable!("the panels of this task are quantised"),
    }
}

/// Takes up what the output holds in one row of a panel.
///
/// # Safety
/// The calling task must own these columns of the row.
unsafe fn read(y: Shared, row: usize, column: &Column<'_>, start: Start, sums: &mut [f32; LANES]) {
    if start == Start::Keep {
        // SAFETY: as the caller vouches; `len` columns are there.
        unsafe {
            let from = y.at(row, column.start);
            std::ptr::copy_nonoverlapping(from, sums.as_mut_ptr(), column.len);
        }
    }
}

/// Writes one row of a panel.
///
/// # Safety
/// The calling task must own these columns of the row.
unsafe fn write(y: Shared, row: usize, column: &Column<'_>, sums: &[f32; LANES]) {
    // SAFETY: as the caller vouches; `len` columns are there.
    unsafe {
        let to = y.at(row, column.start);
        std::ptr::copy_nonoverlapping(sums.as_ptr(), to, column.len);
    }
}
