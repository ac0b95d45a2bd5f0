//! The register tile of [`micro`](super::micro) for AVX2, FMA and F16C.
//!
//! Six rows of one panel keep twelve accumulators, two columns vectors and a broadcast in the sixteen
//! registers, and run at the FMA limit. Few rows take several panels at once instead, so that enough
//! independent chains hide the latency of the FMA: decoding one row is then limited by memory alone.
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
/// AVX2, FMA and F16C must be present, and the tile valid as described there.
#[target_feature(enable = "avx2,fma,f16c")]
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

#[target_feature(enable = "avx2,fma,f16c")]
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

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_tile<const STORAGE: u8, const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    let size = if STORAGE == F32 { 4 } else { 2 };
    let mut sums = [[[_mm256_setzero_ps(); 2]; PANELS]; ROWS];
    if ROWS == 6 {
        // The caller goes down a column of tiles: fetch the output of the next one during this one.
        for i in 0..ROWS {
            let next = tile.c.wrapping_add((ROWS + i) * tile.c_row).cast::<i8>();
            _mm_prefetch::<_MM_HINT_T0>(next);
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(60));
        }
    }
    // SAFETY: every offset lies within the extents the caller vouched for.
    unsafe {
        if tile.held == Held::Continued {
            for (i, row) in sums.iter_mut().enumerate() {
                for (p, sum) in row.iter_mut().enumerate() {
                    let c = tile.c.wrapping_add(i * tile.c_row + p * 16);
                    *sum = [_mm256_loadu_ps(c), _mm256_loadu_ps(c.wrapping_add(8))];
                }
            }
        }
        let (mut a, mut b) = (tile.a, tile.b);
        let (a_row, a_step) = (tile.a_row, tile.a_step);
        let (b_step, b_panel) = (tile.b_step * size, tile.b_panel * size);
        for _ in 0..tile.k {
            let mut columns = [[_mm256_setzero_ps(); 2]; PANELS];
            for (p, column) in columns.iter_mut().enumerate() {
                *column = load16::<STORAGE>(b.wrapping_add(p * b_panel));
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*a.wrapping_add(i * a_row));
                for (sum, column) in row.iter_mut().zip(&columns) {
                    sum[0] = _mm256_fmadd_ps(x, column[0], sum[0]);
                    sum[1] = _mm256_fmadd_ps(x, column[1], sum[1]);
                }
            }
            a = a.wrapping_add(a_step);
            b = b.wrapping_add(b_step);
        }
        for (i, row) in sums.iter().enumerate() {
            for (p, sum) in row.iter().enumerate() {
                let c = tile.c.wrapping_add(i * tile.c_row + p * 16);
                let [mut low, mut high] = *sum;
                if tile.held == Held::Added {
                    low = _mm256_add_ps(low, _mm256_loadu_ps(c));
                    high = _mm256_add_ps(high, _mm256_loadu_ps(c.wrapping_add(8)));
                }
                _mm256_storeu_ps(c, low);
                _mm256_storeu_ps(c.wrapping_add(8), high);
            }
        }
    }
}

/// Loads and widens sixteen elements.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn load16<const STORAGE: u8>(at: *const u8) -> [__m256; 2] {
    // SAFETY: the caller vouches for sixteen elements at `at`.
    unsafe {
        match STORAGE {
            F32 => {
                let at = at.cast::<f32>();
                [_mm256_loadu_ps(at), _mm256_loadu_ps(at.wrapping_add(8))]
            }
            BF16 => {
                let low = _mm_loadu_si128(at.cast());
                let high = _mm_loadu_si128(at.wrapping_add(16).cast());
                let widen = |half| {
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))
                };
                [widen(low), widen(high)]
            }
            _ => {
                let low = _mm_loadu_si128(at.cast());
                let high = _mm_loadu_si128(at.wrapping_add(16).cast());
                [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
            }
        }
    }
}

/// Writes sixteen rows of sixteen columns as sixteen columns of sixteen rows, widened.
///
/// # Safety
/// AVX2, FMA and F16C must be present; `from` must hold 256 elements, `to` room for 256.
#[target_feature(enable = "avx2,fma,f16c")]
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

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn transpose<const STORAGE: u8>(from: *const u8, to: *mut f32) {
    let size = if STORAGE == F32 { 4 } else { 2 };
    for block in 0..2 {
        let mut low = [_mm256_setzero_ps(); 8];
        let mut high = low;
        for i in 0..8 {
            // SAFETY: row `8·block + i` of the 16 × 16 block.
            [low[i], high[i]] =
                unsafe { load16::<STORAGE>(from.wrapping_add((block * 8 + i) * 16 * size)) };
        }
        for (half, rows) in [low, high].into_iter().enumerate() {
            for (i, column) in transpose8(rows).into_iter().enumerate() {
                // SAFETY: row `8·half + i`, columns from `8·block`, of the 16 × 16 result.
                unsafe {
                    _mm256_storeu_ps(to.wrapping_add((half * 8 + i) * 16 + block * 8), column)
                };
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    let pairs = [
        _mm256_unpacklo_ps(r[0], r[1]),
        _mm256_unpackhi_ps(r[0], r[1]),
        _mm256_unpacklo_ps(r[2], r[3]),
        _mm256_unpackhi_ps(r[2], r[3]),
        _mm256_unpacklo_ps(r[4], r[5]),
        _mm256_unpackhi_ps(r[4], r[5]),
        _mm256_unpacklo_ps(r[6], r[7]),
        _mm256_unpackhi_ps(r[6], r[7]),
    ];
    let quads = [
        _mm256_shuffle_ps::<0x44>(pairs[0], pairs[2]),
        _mm256_shuffle_ps::<0xEE>(pairs[0], pairs[2]),
        _mm256_shuffle_ps::<0x44>(pairs[1], pairs[3]),
        _mm256_shuffle_ps::<0xEE>(pairs[1], pairs[3]),
        _mm256_shuffle_ps::<0x44>(pairs[4], pairs[6]),
        _mm256_shuffle_ps::<0xEE>(pairs[4], pairs[6]),
        _mm256_shuffle_ps::<0x44>(pairs[5], pairs[7]),
        _mm256_shuffle_ps::<0xEE>(pairs[5], pairs[7]),
    ];
    [
        _mm256_permute2f128_ps::<0x20>(quads[0], quads[4]),
        _mm256_permute2f128_ps::<0x20>(quads[1], quads[5]),
        _mm256_permute2f128_ps::<0x20>(quads[2], quads[6]),
        _mm256_permute2f128_ps::<0x20>(quads[3], quads[7]),
        _mm256_permute2f128_ps::<0x31>(quads[0], quads[4]),
        _mm256_permute2f128_ps::<0x31>(quads[1], quads[5]),
        _mm256_permute2f128_ps::<0x31>(quads[2], quads[6]),
        _mm256_permute2f128_ps::<0x31>(quads[3], quads[7]),
    ]
}
