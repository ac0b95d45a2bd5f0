//! The register tile of [`micro`](super::micro) for NEON, which every 64-bit ARM processor has.
//!
//! The tiles are those of AVX2. Sixteen columns are four registers here, and six rows of one panel keep 24
//! accumulators and four columns vectors in the 32 registers; the element of `A` is loaded into one more and
//! multiplied lane by lane. Each accumulator adds its products over `k` in ascending order, one fused
//! multiply-add a step, so the bits are those of every other tile.
//!
//! Addresses are advanced with `wrapping_add`, which debug builds do not check: the tests run this code
//! as well.

#![expect(unsafe_code, reason = "vector intrinsics on raw pointers")]

use std::arch::aarch64::*;

use super::micro::{Held, LANES, Tile};
use crate::weights::Dtype;

const F32: u8 = 0;
const BF16: u8 = 1;
const F16: u8 = 2;

/// Registers of a panel's sixteen columns.
const REGISTERS: usize = LANES / 4;

/// The numbers of panels that tiles of so many rows may have, most first.
pub(super) fn widths(rows: usize) -> &'static [usize] {
    match rows {
        1 => &[4, 1],
        2 | 3 => &[2, 1],
        _ => &[1],
    }
}

/// Runs a tile; see [`micro::run`](super::micro::run).
///
/// # Safety
/// The tile must be valid as described there.
pub(super) unsafe fn run(storage: Dtype, rows: usize, panels: usize, tile: &Tile) {
    // SAFETY: passed on to the caller.
    unsafe {
        match storage {
            Dtype::F32 => pick::<F32>(rows, panels, tile),
            Dtype::Bf16 => pick::<BF16>(rows, panels, tile),
            Dtype::F16 => pick::<F16>(rows, panels, tile),
        }
    }
}

#[inline]
unsafe fn pick<const STORAGE: u8>(rows: usize, panels: usize, tile: &Tile) {
    // SAFETY: passed on to the caller.
    unsafe {
        match (rows, panels) {
            (6, 1) => run_tile::<STORAGE, 6, 1>(tile),
            (5, 1) => run_tile::<STORAGE, 5, 1>(tile),
            (4, 1) => run_tile::<STORAGE, 4, 1>(tile),
            (3, 2) => run_tile::<STORAGE, 3, 2>(tile),
            (3, 1) => run_tile::<STORAGE, 3, 1>(tile),
            (2, 2) => run_tile::<STORAGE, 2, 2>(tile),
            (2, 1) => run_tile::<STORAGE, 2, 1>(tile),
            (1, 4) => run_tile::<STORAGE, 1, 4>(tile),
            (1, 1) => run_tile::<STORAGE, 1, 1>(tile),
            _ => unreachable!("no tile of {rows} rows and {panels} panels"),
        }
    }
}

unsafe fn run_tile<const STORAGE: u8, const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    let size = if STORAGE == F32 { 4 } else { 2 };
    // SAFETY: every offset lies within the extents the caller vouched for.
    unsafe {
        let mut sums = [[[vdupq_n_f32(0.0); REGISTERS]; PANELS]; ROWS];
        if tile.held == Held::Continued {
            for (i, row) in sums.iter_mut().enumerate() {
                for (p, sum) in row.iter_mut().enumerate() {
                    *sum = load_f32(tile.c.wrapping_add(i * tile.c_row + p * LANES));
                }
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = (tile.a_row, tile.a_step);
        let (b_step, b_panel) = (tile.b_step * size, tile.b_panel * size);
        for _ in 0..tile.k {
            // Panel by panel: the columns of several panels would not fit the registers with their sums.
            for p in 0..PANELS {
                let columns = load16::<STORAGE>(b.wrapping_add(p * b_panel));
                for (i, row) in sums.iter_mut().enumerate() {
                    let x = vld1q_dup_f32(a.wrapping_add(i * a_row));
                    for (sum, column) in row[p].iter_mut().zip(columns) {
                        *sum = vfmaq_f32(*sum, x, column);
                    }
                }
            }
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(b_step);
        }
        for (i, row) in sums.iter().enumerate() {
            for (p, sum) in row.iter().enumerate() {
                let c = tile.c.wrapping_add(i * tile.c_row + p * LANES);
                for (register, &sum) in sum.iter().enumerate() {
                    let c = c.wrapping_add(4 * register);
                    let sum = if tile.held == Held::Added {
                        vaddq_f32(sum, vld1q_f32(c))
                    } else {
                        sum
                    };
                    vst1q_f32(c, sum);
                }
            }
        }
    }
}

/// Loads sixteen numbers.
#[inline]
unsafe fn load_f32(at: *const f32) -> [float32x4_t; REGISTERS] {
    // SAFETY: the caller vouches for sixteen numbers at `at`.
    unsafe {
        [
            vld1q_f32(at),
            vld1q_f32(at.wrapping_add(4)),
            vld1q_f32(at.wrapping_add(8)),
            vld1q_f32(at.wrapping_add(12)),
        ]
    }
}

/// Loads and widens sixteen elements.
#[inline]
unsafe fn load16<const STORAGE: u8>(at: *const u8) -> [float32x4_t; REGISTERS] {
    // SAFETY: the caller vouches for sixteen elements at `at`.
    unsafe {
        if STORAGE == F32 {
            return load_f32(at.cast());
        }
        let low = vld1q_u16(at.cast());
        let high = vld1q_u16(at.wrapping_add(16).cast());
        [
            widen::<STORAGE>(vget_low_u16(low)),
            widen::<STORAGE>(vget_high_u16(low)),
            widen::<STORAGE>(vget_low_u16(high)),
            widen::<STORAGE>(vget_high_u16(high)),
        ]
    }
}

/// Widens the bits of four bfloat16 or IEEE halves.
#[inline]
unsafe fn widen<const STORAGE: u8>(bits: uint16x4_t) -> float32x4_t {
    // SAFETY: NEON is part of the target.
    unsafe {
        if STORAGE == BF16 {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
        } else {
            vcvt_f32_f16(vreinterpret_f16_u16(bits))
        }
    }
}

/// Writes sixteen rows of sixteen columns as sixteen columns of sixteen rows, widened.
///
/// # Safety
/// `from` must hold 256 elements, `to` room for 256.
pub(super) unsafe fn transpose16(storage: Dtype, from: *const u8, to: *mut f32) {
    // SAFETY: passed on to the caller.
    unsafe {
        match storage {
            Dtype::F32 => transpose::<F32>(from, to),
            Dtype::Bf16 => transpose::<BF16>(from, to),
            Dtype::F16 => transpose::<F16>(from, to),
        }
    }
}

#[inline]
unsafe fn transpose<const STORAGE: u8>(from: *const u8, to: *mut f32) {
    let size = if STORAGE == F32 { 4 } else { 2 };
    for block in 0..REGISTERS {
        // SAFETY: rows `4·block` to `4·block + 3` of the 16 × 16 block, and four of its columns of the result.
        unsafe {
            let row =
                |i: usize| load16::<STORAGE>(from.wrapping_add((block * 4 + i) * LANES * size));
            let rows = [row(0), row(1), row(2), row(3)];
            for quarter in 0..REGISTERS {
                let columns = transpose4(rows.map(|row| row[quarter]));
                for (i, column) in columns.into_iter().enumerate() {
                    let to = to.wrapping_add((quarter * 4 + i) * LANES + block * 4);
                    vst1q_f32(to, column);
                }
            }
        }
    }
}

#[inline]
fn transpose4(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: NEON is part of the target.
    unsafe {
        let pair = |low: float32x4_t, high: float32x4_t| {
            (
                vreinterpretq_f64_f32(vtrn1q_f32(low, high)),
                vreinterpretq_f64_f32(vtrn2q_f32(low, high)),
            )
        };
        let ((even, odd), (even_below, odd_below)) =
            (pair(rows[0], rows[1]), pair(rows[2], rows[3]));
        [
            vreinterpretq_f32_f64(vzip1q_f64(even, even_below)),
            vreinterpretq_f32_f64(vzip1q_f64(odd, odd_below)),
            vreinterpretq_f32_f64(vzip2q_f64(even, even_below)),
            vreinterpretq_f32_f64(vzip2q_f64(odd, odd_below)),
        ]
    }
}
