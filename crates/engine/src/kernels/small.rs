//! Products of small strided matrices on one thread, for attention.
//!
//! `C[i][j] ← start + Σ_k A[i][k] · B[k][j]` with `B` and `C` padded to whole panels of 16 columns.

#![expect(unsafe_code, reason = "hands checked extents to the register tiles")]

use super::cached::Plain;
use super::gemm::Start;
use super::micro::{self, LANES, TILE_ROWS, Tile};
use crate::weights::Dtype;

/// The left factor: element `(i, k)` lies at `i · row + k · step`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) step: usize,
}

/// The right factor: element `(k, 16 p + j)` lies at `p · panel + k · step + j`.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) data: Plain<'a>,
    pub(crate) step: usize,
    pub(crate) panel: usize,
}

#[expect(
    clippy::too_many_arguments,
    reason = "three strided matrices, spelled out"
)]
/// Multiplies; `c` has rows of `c_row` elements.
pub(crate) fn product(
    rows: usize,
    depth: usize,
    panels: usize,
    a: Left<'_>,
    b: Right<'_>,
    c: &mut [f32],
    c_row: usize,
    start: Start,
) {
    if rows == 0 || panels == 0 {
        return;
    }
    let (dtype, b_len) = match b.data {
        Plain::F32(data) => (Dtype::F32, data.len()),
        Plain::Bf16(data) => (Dtype::Bf16, data.len()),
    };
    if depth > 0 {
        assert!(
            (rows - 1) * a.row + (depth - 1) * a.step < a.data.len(),
            "left factor too short"
        );
        assert!(
            (panels - 1) * b.panel + (depth - 1) * b.step + LANES <= b_len,
            "right factor too short"
        );
    }
    assert!(
        (rows - 1) * c_row + panels * LANES <= c.len(),
        "result too short"
    );
    let mut i0 = 0;
    while i0 < rows {
        let height = TILE_ROWS.min(rows - i0);
        let mut panel = 0;
        while panel < panels {
            let wide = micro::widest(height, panels - panel);
            let tile = Tile {
                k: depth,
                a: a.data[(i0 * a.row).min(a.data.len())..].as_ptr(),
                a_row: a.row,
                a_step: a.step,
                b: match b.data {
                    Plain::F32(data) => data[(panel * b.panel).min(b_len)..].as_ptr().cast(),
                    Plain::Bf16(data) => data[(panel * b.panel).min(b_len)..].as_ptr().cast(),
                },
                b_step: b.step,
                b_panel: b.panel,
                c: c[i0 * c_row + panel * LANES..].as_mut_ptr(),
                c_row,
                held: start.into(),
            };
            // SAFETY: the largest offsets of all three operands were checked above.
            unsafe { micro::run(dtype, height, wide, &tile) };
            panel += wide;
        }
        i0 += height;
    }
}
