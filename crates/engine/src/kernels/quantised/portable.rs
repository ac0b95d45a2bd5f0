//! The kernels in portable Rust: the reference of the tests and the fallback of other CPUs.

use super::BLOCK_INPUTS;
use super::int8::{BlockScales, BlockSums, Blocks, Int8Row};
use super::layout::{Block, Layout};
use crate::kernels::micro::LANES;

pub(super) fn widen(block: &Block<'_>, first: usize, to: &mut [f32]) {
    for (step, to) in to.chunks_exact_mut(LANES).enumerate() {
        for (lane, to) in to.iter_mut().enumerate() {
            *to = block.weight(lane, first + step);
        }
    }
}

pub(super) fn dot(layout: Layout, panel: &[u8], x: &[f32], sums: &mut [f32; LANES]) {
    for (index, x) in x.chunks_exact(BLOCK_INPUTS).enumerate() {
        let block = layout.block(panel, index);
        for (lane, sum) in sums.iter_mut().enumerate() {
            for (input, x) in x.iter().enumerate() {
                *sum = x.mul_add(block.weight(lane, input), *sum);
            }
        }
    }
}

pub(super) fn dot_int8(layout: Layout, panel: &[u8], x: Int8Row<'_>, sums: &mut [f32; LANES]) {
    for (index, x_sums) in x.sums.iter().enumerate() {
        let codes = &x.codes[index * BLOCK_INPUTS..][..BLOCK_INPUTS];
        let block = layout.block(panel, index);
        for (lane, sum) in sums.iter_mut().enumerate() {
            let scales = [block.scale(lane, 0), block.scale(lane, 1)];
            let level = |input: usize| block.level(lane, input);
            *sum = add_block(
                layout,
                codes,
                x_sums,
                level,
                scales,
                block.addend(lane),
                *sum,
            );
        }
    }
}

pub(super) fn unpack(block: &Block<'_>, codes: &mut [u8], scales: &mut BlockScales) {
    for (at, to) in codes.iter_mut().enumerate() {
        let (step, p) = (at / (4 * LANES), at % (4 * LANES));
        *to = block.code(p / 4, 4 * step + p % 4);
    }
    let [low, high, addend] = scales;
    let lanes = low.iter_mut().zip(high).zip(addend).enumerate();
    for (lane, ((low, high), addend)) in lanes {
        (*low, *high) = (block.scale(lane, 0), block.scale(lane, 1));
        *addend = block.addend(lane);
    }
}

pub(super) fn tile(
    layout: Layout,
    blocks: Blocks<'_>,
    rows: &[Int8Row<'_>],
    sums: &mut [[f32; LANES]],
) {
    for (row, sums) in rows.iter().zip(sums) {
        for (index, [first, second, addend]) in blocks.scales.iter().enumerate() {
            let codes = &row.codes[index * BLOCK_INPUTS..][..BLOCK_INPUTS];
            let weights = &blocks.codes[index * blocks.stride..];
            for (lane, sum) in sums.iter_mut().enumerate() {
                let level = |input: usize| {
                    let code = weights[input / 4 * 64 + 4 * lane + input % 4];
                    if layout.bits == 8 {
                        i32::from(code.cast_signed())
                    } else {
                        i32::from(code) - i32::from(layout.middle())
                    }
                };
                let (scales, x) = ([first[lane], second[lane]], &row.sums[index]);
                *sum = add_block(layout, codes, x, level, scales, addend[lane], *sum);
            }
        }
    }
}

/// Adds the products of a block of a row with those of an output.
fn add_block(
    layout: Layout,
    codes: &[i8],
    x: &BlockSums,
    level: impl Fn(usize) -> i32,
    scales: [f32; 2],
    addend: f32,
    mut sum: f32,
) -> f32 {
    let of = |inputs: std::ops::Range<usize>| -> i32 {
        inputs.map(|i| i32::from(codes[i]) * level(i)).sum()
    };
    if layout.has_halves() {
        sum = (of(0..16) as f32).mul_add(scales[0] * x.scale, sum);
        sum = (of(16..32) as f32).mul_add(scales[1] * x.scale, sum);
    } else {
        sum = (of(0..32) as f32).mul_add(scales[0] * x.scale, sum);
    }
    if layout.has_addend() {
        sum = addend.mul_add(x.scaled_sum, sum);
    }
    sum
}
