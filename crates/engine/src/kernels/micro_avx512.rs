//! The register tile of [`micro`](super::micro) for AVX-512: a panel is one register wide.
//!
//! Two fused multiply-adds start in each cycle and take four, so eight sums hide their latency; up to 24 of the 32
//! registers hold sums here. Tiles over stored weights take as many panels at once as that allows and fetch ahead of
//! themselves, since the hardware follows one stream of memory more slowly than several.
//!
//! Addresses are advanced with `wrapping_add`, which debug builds do not check: the tests run this code
//! as well.

#![expect(unsafe_code, reason = "vector intrinsics on raw pointers")]

use std::arch::x86_64::*;

use super::micro::{Held, Tile};
use crate::weights::Dtype;

const F32: u8 = 0;
const BF16: u8 = 1;
const F16: u8 = 2;

/// How far ahead of a tile its weights are fetched: measured, of 512 bytes to 4 KiB.
const AHEAD_BYTES: usize = 2048;

/// The numbers of panels that tiles of so many rows may have, most first.
pub(super) fn widths(rows: usize) -> &'static [usize] {
    match rows {
        1..=3 => &[8, 4, 2, 1],
        4 => &[6, 4, 2, 1],
        5 | 6 => &[4, 2, 1],
        _ => &[3, 2, 1],
    }
}

/// Runs a tile; see [`micro::run`](super::micro::run).
///
/// # Safety
/// AVX-512 F, BW, DQ and VL must be present, and the tile valid as described there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn pick<const STORAGE: u8>(rows: usize, panels: usize, tile: &Tile) {
    macro_rules! shapes {
        ($($rows:literal: $($panels:literal)*;)*) => {
            match (rows, panels) {
                $($(($rows, $panels) => run_tile::<STORAGE, $rows, $panels>(tile),)*)*
                _ => unreachable!("no tile of {rows} rows and {panels} panels"),
            }
        };
    }
    // SAFETY: passed on to the caller.
    unsafe {
        shapes! {
            1: 8 4 2 1;
            2: 8 4 2 1;
            3: 8 4 2 1;
            4: 6 4 2 1;
            5: 4 2 1;
            6: 4 2 1;
            7: 3 2 1;
            8: 3 2 1;
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run_tile<const STORAGE: u8, const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    let size = if STORAGE == F32 { 4 } else { 2 };
    // The shapes of products with many rows, whose panels are in the cache already.
    let is_packed = STORAGE == F32 && (ROWS == 5 || ROWS == 6) && PANELS <= 2;
    let mut sums = [[_mm512_setzero_ps(); PANELS]; ROWS];
    if is_packed {
        // The caller goes down a column of tiles: fetch the output of the next one during this one.
        for i in 0..ROWS {
            let next = tile.c.wrapping_add((ROWS + i) * tile.c_row).cast::<i8>();
            for p in 0..PANELS {
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(p * 64));
            }
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(PANELS * 64 - 4));
        }
    }
    // SAFETY: every offset lies within the extents the caller vouched for.
    unsafe {
        if tile.held == Held::Continued {
            for (i, row) in sums.iter_mut().enumerate() {
                for (p, sum) in row.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(tile.c.wrapping_add(i * tile.c_row + p * 16));
                }
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = (tile.a_row, tile.a_step);
        let (b_step, b_panel) = (tile.b_step * size, tile.b_panel * size);
        for _ in 0..tile.k {
            let mut columns = [_mm512_setzero_ps(); PANELS];
            for (p, column) in columns.iter_mut().enumerate() {
                let at = b.wrapping_add(p * b_panel);
                *column = load16::<STORAGE>(at);
                if !is_packed {
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD_BYTES).cast());
                }
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.wrapping_add(i * a_row));
                for (sum, &column) in row.iter_mut().zip(&columns) {
                    *sum = _mm512_fmadd_ps(x, column, *sum);
                }
            }
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(b_step);
        }
        for (i, row) in sums.iter().enumerate() {
            for (p, &sum) in row.iter().enumerate() {
                let c = tile.c.wrapping_add(i * tile.c_row + p * 16);
                let sum = if tile.held == Held::Added {
                    _mm512_add_ps(sum, _mm512_loadu_ps(c))
                } else {
                    sum
                };
                _mm512_storeu_ps(c, sum);
            }
        }
    }
}

/// Loads and widens sixteen elements.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn load16<const STORAGE: u8>(at: *const u8) -> __m512 {
    // SAFETY: the caller vouches for sixteen elements at `at`.
    unsafe {
        match STORAGE {
            F32 => _mm512_loadu_ps(at.cast()),
            BF16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            _ => _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())),
        }
    }
}

/// Writes sixteen rows of sixteen columns as sixteen columns of sixteen rows, widened.
///
/// # Safety
/// AVX-512 F, BW, DQ and VL must be present; `from` must hold 256 elements, `to` room for 256.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn transpose<const STORAGE: u8>(from: *const u8, to: *mut f32) {
    let size = if STORAGE == F32 { 4 } else { 2 };
    // After this loop, quarter `q` of `fours[4 g + c]` is column `4 q + c` of rows `4 g` to `4 g + 3`.
    let mut fours = [_mm512_setzero_ps(); 16];
    for group in 0..4 {
        let mut rows = [_mm512_setzero_ps(); 4];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: row `4 · group + i` of the 16 × 16 block.
            *row = unsafe { load16::<STORAGE>(from.wrapping_add((group * 4 + i) * 16 * size)) };
        }
        let pairs = [
            _mm512_castps_pd(_mm512_unpacklo_ps(rows[0], rows[1])),
            _mm512_castps_pd(_mm512_unpackhi_ps(rows[0], rows[1])),
            _mm512_castps_pd(_mm512_unpacklo_ps(rows[2], rows[3])),
            _mm512_castps_pd(_mm512_unpackhi_ps(rows[2], rows[3])),
        ];
        fours[group * 4] = _mm512_castpd_ps(_mm512_unpacklo_pd(pairs[0], pairs[2]));
        fours[group * 4 + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pairs[0], pairs[2]));
        fours[group * 4 + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pairs[1], pairs[3]));
        fours[group * 4 + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pairs[1], pairs[3]));
    }
    for c in 0..4 {
        let (a, b, d, e) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
        let even = [
            _mm512_shuffle_f32x4::<0x88>(a, b),
            _mm512_shuffle_f32x4::<0x88>(d, e),
        ];
        let odd = [
            _mm512_shuffle_f32x4::<0xDD>(a, b),
            _mm512_shuffle_f32x4::<0xDD>(d, e),
        ];
        let columns = [
            _mm512_shuffle_f32x4::<0x88>(even[0], even[1]),
            _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]),
            _mm512_shuffle_f32x4::<0xDD>(even[0], even[1]),
            _mm512_shuffle_f32x4::<0xDD>(odd[0], odd[1]),
        ];
        for (quarter, column) in columns.into_iter().enumerate() {
            // SAFETY: row `4 · quarter + c` of the 16 × 16 result.
            unsafe { _mm512_storeu_ps(to.wrapping_add((quarter * 4 + c) * 16), column) };
        }
    }
}
