//! The kernels for AVX-512, those of eight-bit activations with VNNI.
//!
//! A register holds four inputs of all 16 outputs. `dpbusd` multiplies unsigned by signed bytes and adds four
//! neighbours in 32 bits, where nothing overflows; codes of eight bits are made unsigned by adding 128, and what that
//! or the code of zero adds is taken off at the end of a block. All of it is exact, so the bits are those of other
//! kernels.
//!
//! As `f32`, codes of four bits come from a table in a register. Others are moved to the top byte of 32 bits: that is
//! the code times 2²⁴, and the scale times 2⁻²⁴ makes the same product, for a scale of 16 bits is far from
//! underflow.

#![expect(unsafe_code, reason = "loads and stores of vector registers")]

use std::arch::x86_64::*;

use super::BLOCK_INPUTS;
use super::int8::{BlockScales, BlockSums, Blocks, Int8Row};
use super::layout::{Block, Layout, Scales};
use crate::kernels::micro::LANES;

// For one row, kernels of these registers were measured to be slower than those of AVX2.
pub(super) use super::avx2::{dot, dot_int8};

/// Evaluates something with the bits of a code as a constant.
macro_rules! of_bits {
    ($layout:expr, $bits:ident => $value:expr) => {
        match $layout.bits {
            4 => {
                const $bits: usize = 4;
                $value
            }
            5 => {
                const $bits: usize = 5;
                $value
            }
            6 => {
                const $bits: usize = 6;
                $value
            }
            _ => {
                const $bits: usize = 8;
                $value
            }
        }
    };
}

/// Widens some inputs of a block, from a multiple of four on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn widen(block: &Block<'_>, first: usize, to: &mut [f32]) {
    of_bits!(block.layout, BITS => widen_of::<BITS>(block, first, to));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn widen_of<const BITS: usize>(block: &Block<'_>, first: usize, to: &mut [f32]) {
    let [low, high, addend] = level_factors::<BITS>(block);
    let middle = block.layout.middle();
    let (steps, _) = to.as_chunks_mut::<{ 4 * LANES }>();
    for_each_step!(STEP => {
        if let Some(to) = STEP.checked_sub(first / 4).and_then(|at| steps.get_mut(at)) {
            let scale = if STEP < 4 { low } else { high };
            let levels = levels::<BITS, STEP>(block.codes, middle);
            let (to, _) = to.as_chunks_mut::<LANES>();
            for (level, to) in levels.into_iter().zip(to) {
                store(_mm512_fmadd_ps(scale, level, addend), to);
            }
        }
    });
}

/// Unpacks a block for [`tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn unpack(block: &Block<'_>, codes: &mut [u8], scales: &mut BlockScales) {
    of_bits!(block.layout, BITS => unpack_of::<BITS>(block, codes, scales));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn unpack_of<const BITS: usize>(block: &Block<'_>, codes: &mut [u8], to: &mut BlockScales) {
    if BITS < 8 {
        let (steps, _) = codes.as_chunks_mut::<{ 4 * LANES }>();
        for_each_step!(STEP => {
            let bytes = bytes::<BITS, STEP>(block.codes);
            // SAFETY: a step has 64 bytes.
            unsafe { _mm512_storeu_si512(steps[STEP].as_mut_ptr().cast(), bytes) };
        });
    }
    for (factor, to) in factors(block).into_iter().zip(to) {
        store(factor, to);
    }
}

/// Adds the products of up to four rows with some blocks of a panel to their sums.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn tile(
    layout: Layout,
    blocks: Blocks<'_>,
    rows: &[Int8Row<'_>],
    sums: &mut [[f32; LANES]],
) {
    of_bits!(layout, BITS => tile_of_rows::<BITS>(layout, blocks, rows, sums));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn tile_of_rows<const BITS: usize>(
    layout: Layout,
    blocks: Blocks<'_>,
    rows: &[Int8Row<'_>],
    sums: &mut [[f32; LANES]],
) {
    match (rows, sums) {
        ([a], [sa]) => tile_of::<BITS, 1>(layout, blocks, [*a], [sa]),
        ([a, b], [sa, sb]) => tile_of::<BITS, 2>(layout, blocks, [*a, *b], [sa, sb]),
        ([a, b, c], [sa, sb, sc]) => {
            tile_of::<BITS, 3>(layout, blocks, [*a, *b, *c], [sa, sb, sc]);
        }
        ([a, b, c, d], [sa, sb, sc, sd]) => {
            tile_of::<BITS, 4>(layout, blocks, [*a, *b, *c, *d], [sa, sb, sc, sd]);
        }
        (rows, _) => assert!(rows.is_empty(), "a tile has at most four rows"),
    }
}

// What is kept in registers is not passed through closures: they would be compiled for any CPU.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn tile_of<const BITS: usize, const ROWS: usize>(
    layout: Layout,
    blocks: Blocks<'_>,
    rows: [Int8Row<'_>; ROWS],
    sums: [&mut [f32; LANES]; ROWS],
) {
    let mut totals = [_mm512_setzero_ps(); ROWS];
    let mut x: [&[[i8; BLOCK_INPUTS]]; ROWS] = [&[]; ROWS];
    for row in 0..ROWS {
        totals[row] = load_sums(sums[row]);
        (x[row], _) = rows[row].codes.as_chunks();
    }
    for (index, scales) in blocks.scales.iter().enumerate() {
        let weights = &blocks.codes[index * blocks.stride..][..BLOCK_INPUTS * LANES];
        let mut products = [[_mm512_setzero_si512(); 2]; ROWS];
        for_each_step!(STEP => {
            let weights = unsigned::<BITS>(load(weights, STEP * 64));
            for row in 0..ROWS {
                let x = four_codes::<STEP>(&x[row][index]);
                let part = &mut products[row][STEP / 4];
                *part = _mm512_dpbusd_epi32(*part, weights, x);
            }
        });
        let factors = [
            load_sums(&scales[0]),
            load_sums(&scales[1]),
            load_sums(&scales[2]),
        ];
        for row in 0..ROWS {
            let x = &rows[row].sums[index];
            totals[row] = add_block::<BITS>(layout, products[row], x, factors, totals[row]);
        }
    }
    for (total, sums) in totals.into_iter().zip(sums) {
        store(total, sums);
    }
}

/// Adds a block: the integer products of its halves, with what makes codes unsigned taken off.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn add_block<const BITS: usize>(
    layout: Layout,
    products: [__m512i; 2],
    x: &BlockSums,
    [low, high, addend]: [__m512; 3],
    mut sum: __m512,
) -> __m512 {
    let added = if BITS == 8 {
        128
    } else {
        i32::from(layout.middle())
    };
    let x_scale = _mm512_set1_ps(x.scale);
    if BITS == 6 {
        let off = [
            _mm512_set1_epi32(x.halves[0] * added),
            _mm512_set1_epi32(x.halves[1] * added),
        ];
        let first = _mm512_cvtepi32_ps(_mm512_sub_epi32(products[0], off[0]));
        let second = _mm512_cvtepi32_ps(_mm512_sub_epi32(products[1], off[1]));
        sum = _mm512_fmadd_ps(first, _mm512_mul_ps(low, x_scale), sum);
        sum = _mm512_fmadd_ps(second, _mm512_mul_ps(high, x_scale), sum);
    } else {
        let off = _mm512_set1_epi32((x.halves[0] + x.halves[1]) * added);
        let both = _mm512_add_epi32(products[0], products[1]);
        let both = _mm512_cvtepi32_ps(_mm512_sub_epi32(both, off));
        sum = _mm512_fmadd_ps(both, _mm512_mul_ps(low, x_scale), sum);
    }
    if layout.has_addend() {
        sum = _mm512_fmadd_ps(addend, _mm512_set1_ps(x.scaled_sum), sum);
    }
    sum
}

/// Signed codes of eight bits plus 128; others have no sign.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn unsigned<const BITS: usize>(codes: __m512i) -> __m512i {
    if BITS == 8 {
        _mm512_xor_si512(codes, _mm512_set1_epi8(-128))
    } else {
        codes
    }
}

/// Four codes of a row, for each of 16 outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn four_codes<const STEP: usize>(x: &[i8; BLOCK_INPUTS]) -> __m512i {
    let at = 4 * STEP;
    let four = [x[at], x[at + 1], x[at + 2], x[at + 3]].map(i8::cast_unsigned);
    _mm512_set1_epi32(i32::from_le_bytes(four))
}

/// The scales of the first and of the second half of a block, and the addends.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn factors(block: &Block<'_>) -> [__m512; 3] {
    let nothing = _mm512_set1_ps(-0.0);
    match block.layout.scales {
        Scales::Half => {
            let scale = halves(block.scales, 0);
            [scale, scale, nothing]
        }
        Scales::HalfAndAddend => {
            let scale = halves(block.scales, 0);
            [scale, scale, halves(block.scales, 2 * LANES)]
        }
        Scales::Bytes => {
            let scale = _mm512_cvtepu8_epi32(sixteen_bytes(block.scales, 0));
            let minimum = _mm512_cvtepu8_epi32(sixteen_bytes(block.scales, LANES));
            let scale = _mm512_mul_ps(halves(block.shared, 0), _mm512_cvtepi32_ps(scale));
            let dmin = halves(block.shared, 2 * LANES);
            let minimum = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(minimum));
            [scale, scale, _mm512_xor_ps(minimum, nothing)]
        }
        Scales::SignedBytes => {
            let d = halves(block.shared, 0);
            let low = _mm512_cvtepi8_epi32(sixteen_bytes(block.scales, 0));
            let high = _mm512_cvtepi8_epi32(sixteen_bytes(block.scales, LANES));
            let low = _mm512_mul_ps(d, _mm512_cvtepi32_ps(low));
            let high = _mm512_mul_ps(d, _mm512_cvtepi32_ps(high));
            [low, high, nothing]
        }
    }
}

/// The same for [`levels`], which are 2²⁴ times too large unless they come from the table.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn level_factors<const BITS: usize>(block: &Block<'_>) -> [__m512; 3] {
    let [low, high, addend] = factors(block);
    if BITS == 4 {
        return [low, high, addend];
    }
    let down = _mm512_set1_ps(1.0 / (1 << 24) as f32);
    [_mm512_mul_ps(low, down), _mm512_mul_ps(high, down), addend]
}

/// The codes of four inputs of 16 outputs, four bytes an output.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn bytes<const BITS: usize, const STEP: usize>(codes: &[u8]) -> __m512i {
    if BITS == 8 {
        return load(codes, STEP * 64);
    }
    let four = load(codes, STEP % 4 * 64);
    let four = if STEP < 4 {
        four
    } else {
        _mm512_srli_epi16::<4>(four)
    };
    let four = _mm512_and_si512(four, _mm512_set1_epi8(15));
    let (plane, shift, mask) = match BITS {
        5 => (256, STEP, 1),
        6 => (256 + STEP % 2 * 64, STEP / 2 * 2, 3),
        _ => return four,
    };
    let bits = _mm512_srl_epi16(load(codes, plane), _mm_cvtsi32_si128(shift as i32));
    let bits = _mm512_and_si512(bits, _mm512_set1_epi8(mask));
    _mm512_or_si512(four, _mm512_slli_epi16::<4>(bits))
}

/// The four codes of each of 16 outputs as numbers, less the one that stands for zero.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn levels<const BITS: usize, const STEP: usize>(codes: &[u8], middle: u8) -> [__m512; 4] {
    if BITS == 4 {
        let table = _mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        );
        let table = _mm512_sub_ps(table, _mm512_set1_ps(f32::from(middle)));
        // Only the last four bits of an index count.
        let four = load(codes, STEP % 4 * 64);
        let four = if STEP < 4 {
            four
        } else {
            _mm512_srli_epi32::<4>(four)
        };
        return [
            _mm512_permutexvar_ps(four, table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<8>(four), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<16>(four), table),
            _mm512_permutexvar_ps(_mm512_srli_epi32::<24>(four), table),
        ];
    }
    let codes = _mm512_sub_epi8(
        bytes::<BITS, STEP>(codes),
        _mm512_set1_epi8(middle.cast_signed()),
    );
    [
        top_byte::<0>(codes),
        top_byte::<1>(codes),
        top_byte::<2>(codes),
        top_byte::<3>(codes),
    ]
}

/// One of the four bytes of each output, signed, times 2²⁴.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn top_byte<const INPUT: i8>(codes: __m512i) -> __m512 {
    let order = _mm_setr_epi8(
        -1,
        -1,
        -1,
        INPUT,
        -1,
        -1,
        -1,
        4 + INPUT,
        -1,
        -1,
        -1,
        8 + INPUT,
        -1,
        -1,
        -1,
        12 + INPUT,
    );
    let order = _mm512_broadcast_i32x4(order);
    _mm512_cvtepi32_ps(_mm512_shuffle_epi8(codes, order))
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn load(bytes: &[u8], at: usize) -> __m512i {
    let bytes = &bytes[at..at + 64];
    // SAFETY: 64 bytes have just been cut out.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Widens 16 numbers of 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn halves(bytes: &[u8], at: usize) -> __m512 {
    let bytes = &bytes[at..at + 32];
    // SAFETY: 32 bytes have just been cut out.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn sixteen_bytes(bytes: &[u8], at: usize) -> __m128i {
    let bytes = &bytes[at..at + 16];
    // SAFETY: 16 bytes have just been cut out.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn load_sums(sums: &[f32; LANES]) -> __m512 {
    // SAFETY: there are sixteen.
    unsafe { _mm512_loadu_ps(sums.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn store(from: __m512, to: &mut [f32; LANES]) {
    // SAFETY: there are sixteen.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), from) };
}
