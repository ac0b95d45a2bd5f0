//! Rows of activations in eight bits, and tiles of them.
//!
//! ```text
//! x ≈ d · q      d = max |x| / 127 of 32 neighbours, q = round(x / d)
//! Σ x w ≈ Σ over blocks of  (scale · d) · Σ q · level  +  addend · (d · Σ q)
//! ```
//!
//! The inner sums are integers. A row is rounded by itself, so it has the same codes in every batch.

use rayon::prelude::*;

use super::{BLOCK_INPUTS, Layout};
use crate::kernels::isa;
use crate::kernels::matrix::Mat;
use crate::kernels::micro::LANES;
use crate::model::rows::rows_per_task;

/// Rows of the largest tile.
pub(crate) const INT8_ROWS: usize = 4;

/// The scale of a block of a row, and what the kernels need of its codes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct BlockSums {
    pub(super) scale: f32,
    /// The scale times the sum of all codes.
    pub(super) scaled_sum: f32,
    /// The sums of the first and the last 16 codes.
    pub(super) halves: [i32; 2],
}

/// A matrix of activations in eight bits.
#[derive(Debug)]
pub(crate) struct Int8Rows {
    inputs: usize,
    codes: Vec<i8>,
    sums: Vec<BlockSums>,
}

/// One of its rows, or some blocks of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8Row<'a> {
    pub(super) codes: &'a [i8],
    pub(super) sums: &'a [BlockSums],
}

impl Int8Rows {
    /// Rounds the rows of a matrix.
    pub(crate) fn round(x: Mat<'_>) -> Self {
        let (rows, inputs) = (x.rows(), x.cols());
        let blocks = inputs / BLOCK_INPUTS;
        let mut codes = vec![0; rows * inputs];
        let mut sums = vec![BlockSums::default(); rows * blocks];
        let one = |(row, (codes, sums)): (usize, (&mut [i8], &mut [BlockSums]))| {
            round_row(x.row(row), codes, sums);
        };
        let per_task = rows_per_task(4 * inputs);
        if rows <= per_task {
            let parts = codes.chunks_mut(inputs).zip(sums.chunks_mut(blocks));
            parts.enumerate().for_each(one);
        } else {
            let parts = codes
                .par_chunks_mut(inputs)
                .zip(sums.par_chunks_mut(blocks));
            parts.enumerate().with_min_len(per_task).for_each(one);
        }
        Self {
            inputs,
            codes,
            sums,
        }
    }

    /// Returns some blocks of a row.
    pub(crate) fn row(&self, row: usize, first: usize, count: usize) -> Int8Row<'_> {
        let blocks = self.inputs / BLOCK_INPUTS;
        Int8Row {
            codes: &self.codes[row * self.inputs + first * BLOCK_INPUTS..][..count * BLOCK_INPUTS],
            sums: &self.sums[row * blocks + first..][..count],
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.inputs / BLOCK_INPUTS
    }
}

impl Int8Row<'_> {
    pub(super) fn len(&self) -> usize {
        self.sums.len()
    }
}

isa::vectorised! {
    fn round_row(x: &[f32], codes: &mut [i8], sums: &mut [BlockSums]) {
        let (x, _) = x.as_chunks::<BLOCK_INPUTS>();
        let (codes, _) = codes.as_chunks_mut::<BLOCK_INPUTS>();
        for ((x, codes), sums) in x.iter().zip(codes).zip(sums) {
            // A number that is not finite makes the scale, and with it all products, not finite.
            let mut most = [0.0f32; 8];
            let mut wrong = [0.0f32; 8];
            for x in x.as_chunks::<8>().0 {
                for lane in 0..8 {
                    most[lane] = most[lane].max(x[lane].abs());
                    wrong[lane] += x[lane] * 0.0;
                }
            }
            let largest = most.iter().fold(0.0f32, |most, x| most.max(*x));
            let scale = largest / 127.0 + wrong.iter().sum::<f32>();
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let mut halves = [0i32; 2];
            for (half, sum) in halves.iter_mut().enumerate() {
                for i in half * 16..half * 16 + 16 {
                    let code = (x[i] * inverse).round_ties_even() as i32;
                    let code = code.clamp(-127, 127);
                    codes[i] = code as i8;
                    *sum += code;
                }
            }
            *sums = BlockSums {
                scale,
                scaled_sum: scale * (halves[0] + halves[1]) as f32,
                halves,
            };
        }
    }
}

/// The scales of the first half of a block, of the second half, and the addends.
pub(super) type BlockScales = [[f32; LANES]; 3];

/// Some blocks of a panel with a byte for each code and a number for each scale, which several rows read.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    /// `[block][step][output][input % 4]`; unused if the codes of the panel are bytes already.
    pub(super) codes: Vec<u8>,
    pub(super) scales: Vec<BlockScales>,
}

/// Blocks of codes that are a byte each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks<'a> {
    pub(super) codes: &'a [u8],
    /// From the codes of a block to those of the next.
    pub(super) stride: usize,
    pub(super) scales: &'a [BlockScales],
}

/// Some blocks of a panel, ready for tiles of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles<'a> {
    pub(super) layout: Layout,
    pub(super) blocks: Blocks<'a>,
}

impl Tiles<'_> {
    /// Adds the products of up to four rows with the blocks to their sums.
    pub(crate) fn tile(&self, rows: &[Int8Row<'_>], sums: &mut [[f32; LANES]]) {
        assert!(
            rows.len() == sums.len() && rows.len() <= INT8_ROWS,
            "rows of a tile"
        );
        for row in rows {
            assert_eq!(row.len(), self.blocks.scales.len(), "blocks of inputs");
        }
        at_level!(isa::int8_level() => tile(self.layout, self.blocks, rows, sums));
    }
}
