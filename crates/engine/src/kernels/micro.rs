//! The register tile under every matrix product.
//!
//! `C[i][j] ← Σ_k A[i][k] · B[k][j]` for a few rows `i` and 16 columns `j` a panel, with or without what
//! `C` [holds](Held). The sum runs over `k` in ascending order, one fused multiply-add a step: every
//! tile shape gives the same bits for the same element. Strides are free, so one kernel serves
//! weights in panels, transposed operands and the small products of attention.

#![expect(
    unsafe_code,
    reason = "tiles read and write through raw pointers with strides"
)]

use super::isa::{self, Level};
use crate::weights::Dtype;

/// Columns of a panel: one register of AVX-512, two of AVX2 or four of NEON.
pub(crate) const LANES: usize = 16;
/// Rows of a strip of packed rows, for which every level has a tile: with two registers of AVX2 a row, twelve
/// accumulators fill the register file.
pub(crate) const TILE_ROWS: usize = 6;

/// Rows of the largest tile of any level.
pub(crate) const MOST_ROWS: usize = 8;

/// Returns the rows of the largest tile.
pub(crate) fn most_rows() -> usize {
    match isa::level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => MOST_ROWS,
        _ => TILE_ROWS,
    }
}

/// Returns the numbers of panels that tiles of so many rows may have, most first; one panel is always possible.
pub(crate) fn widths(rows: usize) -> &'static [usize] {
    match isa::level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => super::micro_avx512::widths(rows),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => super::micro_avx2::widths(rows),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => super::micro_neon::widths(rows),
        Level::Portable => &[1],
    }
}

/// Returns the most panels, of so many, that a tile of so many rows may have.
pub(crate) fn widest(rows: usize, panels: usize) -> usize {
    let mut fitting = widths(rows).iter().filter(|&&width| width <= panels);
    fitting.next().copied().unwrap_or(1)
}

/// What becomes of what `C` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// It is forgotten: the sum starts from zero.
    Dropped,
    /// The sum starts from it. Several tiles make one long sum this way, with its bits.
    Continued,
    /// The sum starts from zero and is added to it. Of a long sum in parts, less is lost this way.
    Added,
}

/// One tile's operands. Strides count elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    /// From `A[i][k]` to `A[i + 1][k]`.
    pub(crate) a_row: usize,
    /// From `A[i][k]` to `A[i][k + 1]`.
    pub(crate) a_step: usize,
    pub(crate) b: *const u8,
    /// From `B[k][0]` to `B[k + 1][0]`.
    pub(crate) b_step: usize,
    /// From one panel of 16 columns to the next, when the tile spans several.
    pub(crate) b_panel: usize,
    pub(crate) c: *mut f32,
    /// From `C[i][0]` to `C[i + 1][0]`; panels follow each other within a row.
    pub(crate) c_row: usize,
    pub(crate) held: Held,
}

/// Runs a tile of `rows` rows, from 1 to [`most_rows`], and `panels` panels, one of their [`widths`].
///
/// # Safety
/// `a`, `b` and `c` must be valid for every element the strides reach: `rows × k` of `A`, `k` rows of
/// `16 · panels` columns of `B` in the given storage, and `rows` rows of `16 · panels` columns of `C`,
/// the last not aliased by anyone else.
pub(crate) unsafe fn run(storage: Dtype, rows: usize, panels: usize, tile: &Tile) {
    // SAFETY: the features of the level were detected; the caller vouches for the pointers.
    unsafe {
        match isa::level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => super::micro_avx512::run(storage, rows, panels, tile),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => super::micro_avx2::run(storage, rows, panels, tile),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => super::micro_neon::run(storage, rows, panels, tile),
            Level::Portable => portable(storage, rows, panels, tile),
        }
    }
}

/// The same tile in portable Rust: the reference of the tests and the fallback of other CPUs.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn portable(storage: Dtype, rows: usize, panels: usize, tile: &Tile) {
    for panel in 0..panels {
        for i in 0..rows {
            // SAFETY: all offsets stay within what the caller vouched for.
            unsafe {
                let c = tile.c.add(i * tile.c_row + panel * LANES);
                let mut sum = [0.0f32; LANES];
                if tile.held == Held::Continued {
                    std::ptr::copy_nonoverlapping(c, sum.as_mut_ptr(), LANES);
                }
                for k in 0..tile.k {
                    let a = *tile.a.add(i * tile.a_row + k * tile.a_step);
                    let at = panel * tile.b_panel + k * tile.b_step;
                    for (lane, sum) in sum.iter_mut().enumerate() {
                        *sum = a.mul_add(widened(storage, tile.b, at + lane), *sum);
                    }
                }
                if tile.held == Held::Added {
                    for (lane, sum) in sum.iter_mut().enumerate() {
                        *sum += *c.add(lane);
                    }
                }
                std::ptr::copy_nonoverlapping(sum.as_ptr(), c, LANES);
            }
        }
    }
}

/// Writes sixteen rows of sixteen columns as sixteen columns of sixteen rows, widened.
///
/// # Safety
/// `from` must hold 256 elements of the storage, and `to` have room for 256.
pub(crate) unsafe fn transpose16(storage: Dtype, from: *const u8, to: *mut f32) {
    // SAFETY: the features of the level were detected; the caller vouches for the pointers.
    unsafe {
        match isa::level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => super::micro_avx512::transpose16(storage, from, to),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => super::micro_avx2::transpose16(storage, from, to),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => super::micro_neon::transpose16(storage, from, to),
            Level::Portable => {
                for i in 0..LANES {
                    for j in 0..LANES {
                        *to.add(j * LANES + i) = widened(storage, from, i * LANES + j);
                    }
                }
            }
        }
    }
}

/// Reads and widens an element.
///
/// # Safety
/// There must be that many elements of the storage at `from`, and one more.
#[inline(always)]
unsafe fn widened(storage: Dtype, from: *const u8, at: usize) -> f32 {
    // SAFETY: as the caller vouches.
    unsafe {
        match storage {
            Dtype::F32 => *from.cast::<f32>().add(at),
            Dtype::Bf16 => widen_bf16(*from.cast::<u16>().add(at)),
            Dtype::F16 => widen_f16(*from.cast::<u16>().add(at)),
        }
    }
}

/// Widens the bits of a bfloat16.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens the bits of an IEEE half.
#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa::testing::{at, levels};

    /// Every tile shape and storage of every level against the portable one, bit for bit.
    #[test]
    fn vector_tiles_equal_the_portable_tile_bit_for_bit() {
        const WIDTH: usize = 8 * LANES;
        let k = 37;
        let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
        let a: Vec<f32> = (0..8 * k).map(value).collect();
        let b32: Vec<f32> = (0..8 * k * LANES).map(|i| value(i + 7)).collect();
        let bf: Vec<u16> = b32
            .iter()
            .map(|&x| half::bf16::from_f32(x).to_bits())
            .collect();
        let hf: Vec<u16> = b32
            .iter()
            .map(|&x| half::f16::from_f32(x).to_bits())
            .collect();
        let start: Vec<f32> = (0..8 * WIDTH).map(|i| value(i + 3)).collect();
        for level in levels() {
            let shapes = at(level, || {
                let rows = 1..=most_rows();
                rows.flat_map(|rows| widths(rows).iter().map(move |&panels| (rows, panels)))
                    .collect::<Vec<_>>()
            });
            for storage in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                let b = match storage {
                    Dtype::F32 => b32.as_ptr().cast(),
                    Dtype::Bf16 => bf.as_ptr().cast(),
                    Dtype::F16 => hf.as_ptr().cast(),
                };
                for &(rows, panels) in &shapes {
                    for held in [Held::Dropped, Held::Continued, Held::Added] {
                        let (mut fast, mut slow) = (start.clone(), start.clone());
                        let mut tile = Tile {
                            k,
                            a: a.as_ptr(),
                            a_row: k,
                            a_step: 1,
                            b,
                            b_step: LANES,
                            b_panel: k * LANES,
                            c: fast.as_mut_ptr(),
                            c_row: WIDTH,
                            held,
                        };
                        // SAFETY: the buffers above have exactly the extents the tile reaches.
                        unsafe {
                            at(level, || run(storage, rows, panels, &tile));
                            tile.c = slow.as_mut_ptr();
                            portable(storage, rows, panels, &tile);
                        }
                        assert_eq!(fast, slow, "{level:?} {storage:?} {rows}x{panels} {held:?}");
                    }
                }
            }
        }
    }
}
