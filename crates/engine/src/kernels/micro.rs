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

use super::isa;
use crate::weights::Dtype;

/// Columns of a panel: two AVX2 registers.
pub(crate) const LANES: usize = 16;
/// Rows of the largest tile: with two registers a row, twelve accumulators fill the register file.
pub(crate) const TILE_ROWS: usize = 6;

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

/// Runs a tile of `rows` rows (1 to 6) and `panels` panels (4 at one row, 2 at two or three, else 1).
///
/// # Safety
/// `a`, `b` and `c` must be valid for every element the strides reach: `rows × k` of `A`, `k` rows of
/// `16 · panels` columns of `B` in the given storage, and `rows` rows of `16 · panels` columns of `C`,
/// the last not aliased by anyone else.
pub(crate) unsafe fn run(storage: Dtype, rows: usize, panels: usize, tile: &Tile) {
    #[cfg(target_arch = "x86_64")]
    if isa::has_avx2() {
        // SAFETY: the features were detected; the caller vouches for the pointers.
        return unsafe { super::micro_avx2::run(storage, rows, panels, tile) };
    }
    // SAFETY: as the caller vouches.
    unsafe { portable(storage, rows, panels, tile) }
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
                        let b = match storage {
                            Dtype::F32 => *tile.b.cast::<f32>().add(at + lane),
                            Dtype::Bf16 => widen_bf16(*tile.b.cast::<u16>().add(at + lane)),
                            Dtype::F16 => widen_f16(*tile.b.cast::<u16>().add(at + lane)),
                        };
                        *sum = a.mul_add(b, *sum);
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
        let k = 37;
        let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
        let a: Vec<f32> = (0..TILE_ROWS * k).map(value).collect();
        let b32: Vec<f32> = (0..4 * k * LANES).map(|i| value(i + 7)).collect();
        let bf: Vec<u16> = b32
            .iter()
            .map(|&x| half::bf16::from_f32(x).to_bits())
            .collect();
        let hf: Vec<u16> = b32
            .iter()
            .map(|&x| half::f16::from_f32(x).to_bits())
            .collect();
        let shapes = [
            (1, 4),
            (1, 1),
            (2, 2),
            (2, 1),
            (3, 2),
            (3, 1),
            (4, 1),
            (5, 1),
            (6, 1),
        ];
        for storage in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            for (rows, panels) in shapes {
                for held in [Held::Dropped, Held::Continued, Held::Added] {
                    let b = match storage {
                        Dtype::F32 => b32.as_ptr().cast(),
                        Dtype::Bf16 => bf.as_ptr().cast(),
                        Dtype::F16 => hf.as_ptr().cast(),
                    };
                    let start: Vec<f32> = (0..TILE_ROWS * 64).map(|i| value(i + 3)).collect();
                    let mut slow = start.clone();
                    let tile = Tile {
                        k,
                        a: a.as_ptr(),
                        a_row: k,
                        a_step: 1,
                        b,
                        b_step: LANES,
                        b_panel: k * LANES,
                        c: slow.as_mut_ptr(),
                        c_row: 64,
                        held,
                    };
                    // SAFETY: the buffers above have exactly the extents the tile reaches.
                    unsafe { portable(storage, rows, panels, &tile) };
                    for level in levels() {
                        let mut fast = start.clone();
                        let c = fast.as_mut_ptr();
                        // SAFETY: as above.
                        at(level, || unsafe {
                            run(storage, rows, panels, &Tile { c, ..tile })
                        });
                        assert_eq!(fast, slow, "{storage:?} {rows}x{panels} {held:?} {level:?}");
                    }
                }
            }
        }
    }
}
