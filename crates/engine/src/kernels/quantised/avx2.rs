//! The kernels for AVX2, FMA and F16C.
//!
//! Products of codes use `maddubs`, which multiplies unsigned by signed bytes and adds neighbours in 16 bits.
//! Codes of four to six bits have no sign, and eight, four or two such sums fit 16 bits; what the code of zero
//! adds to them is taken off at the end of a block. Codes of eight bits are signed: their sign moves to the
//! activation, which is never -128, and a sum of two products still fits.

#![expect(unsafe_code, reason = "loads and stores of vector registers")]

use std::arch::x86_64::*;

use super::BLOCK_INPUTS;
use super::int8::{BlockScales, BlockSums, Blocks, Int8Row};
use super::layout::{Block, Layout, Scales};
use crate::kernels::micro::LANES;

const HALF: u8 = 0;
const HALF_AND_ADDEND: u8 = 1;
const BYTES: u8 = 2;
const SIGNED_BYTES: u8 = 3;

/// Calls the kernel of a layout, with its properties as constants.
macro_rules! of_layout {
    ($layout:expr, $kernel:ident($($argument:expr),*)) => {
        match ($layout.bits, $layout.scales) {
            (8, Scales::Half) => $kernel::<8, HALF>($($argument),*),
            (4, Scales::Half) => $kernel::<4, HALF>($($argument),*),
            (5, Scales::Half) => $kernel::<5, HALF>($($argument),*),
            (4, Scales::HalfAndAddend) => $kernel::<4, HALF_AND_ADDEND>($($argument),*),
            (5, Scales::HalfAndAddend) => $kernel::<5, HALF_AND_ADDEND>($($argument),*),
            (4, Scales::Bytes) => $kernel::<4, BYTES>($($argument),*),
            (5, Scales::Bytes) => $kernel::<5, BYTES>($($argument),*),
            (6, Scales::SignedBytes) => $kernel::<6, SIGNED_BYTES>($($argument),*),
            other => unreachable!("no format has the layout {other:?}"),
        }
    };
}

const fn layout<const BITS: usize, const SCALES: u8>() -> Layout {
    let scales = match SCALES {
        HALF => Scales::Half,
        HALF_AND_ADDEND => Scales::HalfAndAddend,
        BYTES => Scales::Bytes,
        _ => Scales::SignedBytes,
    };
    Layout { bits: BITS, scales }
}

/// Widens some inputs of a block, from a multiple of four on.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen(block: &Block<'_>, first: usize, to: &mut [f32]) {
    of_layout!(block.layout, widen_of(block, first, to));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn widen_of<const BITS: usize, const SCALES: u8>(block: &Block<'_>, first: usize, to: &mut [f32]) {
    let [low, high, addend] = scales::<SCALES>(block);
    let (steps, _) = to.as_chunks_mut::<{ 4 * LANES }>();
    for_each_step!(STEP => {
        if let Some(to) = STEP.checked_sub(first / 4).and_then(|at| steps.get_mut(at)) {
            let scale = if STEP < 4 { low } else { high };
            for half in 0..2 {
                let levels = levels::<BITS, SCALES>(code::<BITS, STEP>(block.codes, half));
                for (input, level) in levels.into_iter().enumerate() {
                    let weight = _mm256_fmadd_ps(scale[half], level, addend[half]);
                    let to = &mut to[input * LANES + half * 8..][..8];
                    // SAFETY: eight numbers have just been cut out.
                    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), weight) };
                }
            }
        }
    });
}

/// Adds the products of one row with a panel to its sums.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot(layout: Layout, panel: &[u8], x: &[f32], sums: &mut [f32; LANES]) {
    of_layout!(layout, dot_of(panel, x, sums));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dot_of<const BITS: usize, const SCALES: u8>(panel: &[u8], x: &[f32], sums: &mut [f32; LANES]) {
    let layout = const { layout::<BITS, SCALES>() };
    let mut total = load_sums(sums);
    let (x, _) = x.as_chunks::<BLOCK_INPUTS>();
    for (index, x) in x.iter().enumerate() {
        let block = layout.block(panel, index);
        let [low, high, addend] = scales::<SCALES>(&block);
        for_each_step!(STEP => {
            let scale = if STEP < 4 { low } else { high };
            let first = levels::<BITS, SCALES>(code::<BITS, STEP>(block.codes, 0));
            let second = levels::<BITS, SCALES>(code::<BITS, STEP>(block.codes, 1));
            for input in 0..4 {
                let x = _mm256_set1_ps(x[STEP * 4 + input]);
                let weight = _mm256_fmadd_ps(scale[0], first[input], addend[0]);
                total[0] = _mm256_fmadd_ps(x, weight, total[0]);
                let weight = _mm256_fmadd_ps(scale[1], second[input], addend[1]);
                total[1] = _mm256_fmadd_ps(x, weight, total[1]);
            }
        });
    }
    store_sums(total, sums);
}

/// Adds the products of one row in eight bits with a panel to its sums.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_int8(layout: Layout, panel: &[u8], x: Int8Row<'_>, sums: &mut [f32; LANES]) {
    of_layout!(layout, dot_int8_of(panel, x, sums));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn dot_int8_of<const BITS: usize, const SCALES: u8>(
    panel: &[u8],
    x: Int8Row<'_>,
    sums: &mut [f32; LANES],
) {
    let layout = const { layout::<BITS, SCALES>() };
    let mut total = load_sums(sums);
    let (codes, _) = x.codes.as_chunks::<BLOCK_INPUTS>();
    for (index, (codes, x_sums)) in codes.iter().zip(x.sums).enumerate() {
        let block = layout.block(panel, index);
        let mut products = Products::<1>::zero();
        for_each_step!(STEP => {
            let weights = [code::<BITS, STEP>(block.codes, 0), code::<BITS, STEP>(block.codes, 1)];
            products.add::<BITS, STEP>(weights, [codes]);
        });
        let scales = scales::<SCALES>(&block);
        let scale = _mm256_set1_ps(x_sums.scale);
        for half in 0..2 {
            let scales = [scales[0][half], scales[1][half]];
            let [first, second] = products.of(0, half);
            let mut sum = total[half];
            if layout.has_halves() {
                sum = add_part(layout, first, x_sums.halves[0], scales[0], scale, sum);
                sum = add_part(layout, second, x_sums.halves[1], scales[1], scale, sum);
            } else {
                let count = x_sums.halves[0] + x_sums.halves[1];
                sum = add_part(layout, first, count, scales[0], scale, sum);
            }
            total[half] = sum;
        }
        if layout.has_addend() {
            let x = _mm256_set1_ps(x_sums.scaled_sum);
            total[0] = _mm256_fmadd_ps(scales[2][0], x, total[0]);
            total[1] = _mm256_fmadd_ps(scales[2][1], x, total[1]);
        }
    }
    store_sums(total, sums);
}

/// Unpacks a block for [`tile`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(block: &Block<'_>, codes: &mut [u8], scales: &mut BlockScales) {
    of_layout!(block.layout, unpack_of(block, codes, scales));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_of<const BITS: usize, const SCALES: u8>(
    block: &Block<'_>,
    codes: &mut [u8],
    to: &mut BlockScales,
) {
    if BITS < 8 {
        for_each_step!(STEP => {
            for half in 0..2 {
                let to = &mut codes[STEP * 64 + half * 32..][..32];
                let code = code::<BITS, STEP>(block.codes, half);
                // SAFETY: 32 bytes have just been cut out.
                unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), code) };
            }
        });
    }
    let [low, high, addend] = scales::<SCALES>(block);
    store_sums(low, &mut to[0]);
    store_sums(high, &mut to[1]);
    store_sums(addend, &mut to[2]);
}

/// Adds the products of up to four rows with some blocks of a panel to their sums.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile(
    layout: Layout,
    blocks: Blocks<'_>,
    rows: &[Int8Row<'_>],
    sums: &mut [[f32; LANES]],
) {
    match layout.bits {
        4 => tile_of_rows::<4>(layout, blocks, rows, sums),
        5 => tile_of_rows::<5>(layout, blocks, rows, sums),
        6 => tile_of_rows::<6>(layout, blocks, rows, sums),
        _ => tile_of_rows::<8>(layout, blocks, rows, sums),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile_of<const BITS: usize, const ROWS: usize>(
    layout: Layout,
    blocks: Blocks<'_>,
    rows: [Int8Row<'_>; ROWS],
    sums: [&mut [f32; LANES]; ROWS],
) {
    let mut totals = [[_mm256_setzero_ps(); 2]; ROWS];
    let mut x: [&[[i8; BLOCK_INPUTS]]; ROWS] = [&[]; ROWS];
    let mut x_sums: [&[BlockSums]; ROWS] = [&[]; ROWS];
    for row in 0..ROWS {
        totals[row] = load_sums(sums[row]);
        (x[row], _) = rows[row].codes.as_chunks();
        x_sums[row] = rows[row].sums;
    }
    for (index, scales) in blocks.scales.iter().enumerate() {
        let weights = &blocks.codes[index * blocks.stride..][..BLOCK_INPUTS * LANES];
        let mut codes = [&x[0][index]; ROWS];
        for row in 1..ROWS {
            codes[row] = &x[row][index];
        }
        let mut products = Products::<ROWS>::zero();
        for_each_step!(STEP => {
            let weights = [code::<8, STEP>(weights, 0), code::<8, STEP>(weights, 1)];
            products.add::<BITS, STEP>(weights, codes);
        });
        let low = load_sums(&scales[0]);
        let high = load_sums(&scales[1]);
        let addend = load_sums(&scales[2]);
        for row in 0..ROWS {
            let x = &x_sums[row][index];
            let scale = _mm256_set1_ps(x.scale);
            for half in 0..2 {
                let [first, second] = products.of(row, half);
                let mut sum = totals[row][half];
                if BITS == 6 {
                    sum = add_part(layout, first, x.halves[0], low[half], scale, sum);
                    sum = add_part(layout, second, x.halves[1], high[half], scale, sum);
                } else {
                    let count = x.halves[0] + x.halves[1];
                    sum = add_part(layout, first, count, low[half], scale, sum);
                }
                if layout.has_addend() {
                    let x = _mm256_set1_ps(x.scaled_sum);
                    sum = _mm256_fmadd_ps(addend[half], x, sum);
                }
                totals[row][half] = sum;
            }
        }
    }
    for (total, sums) in totals.into_iter().zip(sums) {
        store_sums(total, sums);
    }
}

/// Adds one part of a block: integer products, and what the code of zero has added to them taken off.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_part(
    layout: Layout,
    products: __m256i,
    codes: i32,
    scale: __m256,
    x_scale: __m256,
    sum: __m256,
) -> __m256 {
    let middle = _mm256_set1_epi32(codes * i32::from(layout.middle()));
    let products = _mm256_cvtepi32_ps(_mm256_sub_epi32(products, middle));
    _mm256_fmadd_ps(products, _mm256_mul_ps(scale, x_scale), sum)
}

/// Sums of integer products of a block, for some rows and the two halves of 16 outputs.
struct Products<const ROWS: usize> {
    /// In 16 bits, over a few steps.
    short: [[__m256i; 2]; ROWS],
    /// Of the first half of the block and of the second; only the first if scales do not tell them apart.
    long: [[[__m256i; 2]; 2]; ROWS],
}

impl<const ROWS: usize> Products<ROWS> {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn zero() -> Self {
        let zero = _mm256_setzero_si256();
        Self {
            short: [[zero; 2]; ROWS],
            long: [[[zero; 2]; 2]; ROWS],
        }
    }

    /// Adds the products of four inputs.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn add<const BITS: usize, const STEP: usize>(
        &mut self,
        weights: [__m256i; 2],
        x: [&[i8; BLOCK_INPUTS]; ROWS],
    ) {
        // How many sums of two products fit 16 bits: 2 · 15 · 127 · 8, 2 · 31 · 127 · 4, 2 · 63 · 127 · 2
        // and 2 · 128 · 127 are all below 32,768.
        let steps = match BITS {
            4 => 8,
            5 => 4,
            6 => 2,
            _ => 1,
        };
        let part = if BITS == 6 { STEP / 4 } else { 0 };
        let ones = _mm256_set1_epi16(1);
        for (row, x) in x.into_iter().enumerate() {
            let at = 4 * STEP;
            let four = [x[at], x[at + 1], x[at + 2], x[at + 3]].map(i8::cast_unsigned);
            let x = _mm256_set1_epi32(i32::from_le_bytes(four));
            for (half, &weight) in weights.iter().enumerate() {
                let products = if BITS == 8 {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(x, weight))
                } else {
                    _mm256_maddubs_epi16(weight, x)
                };
                let short = _mm256_add_epi16(self.short[row][half], products);
                if (STEP + 1).is_multiple_of(steps) {
                    let long = &mut self.long[row][part][half];
                    *long = _mm256_add_epi32(*long, _mm256_madd_epi16(short, ones));
                    self.short[row][half] = _mm256_setzero_si256();
                } else {
                    self.short[row][half] = short;
                }
            }
        }
    }

    /// The sums of the first half of the block, or of all of it, and of the second half.
    fn of(&self, row: usize, half: usize) -> [__m256i; 2] {
        [self.long[row][0][half], self.long[row][1][half]]
    }
}

/// The scales of the first and of the second half of a block, and the addends, of 16 outputs.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn scales<const SCALES: u8>(block: &Block<'_>) -> [[__m256; 2]; 3] {
    let first = eight_scales::<SCALES>(block, 0);
    let second = eight_scales::<SCALES>(block, 1);
    [
        [first[0], second[0]],
        [first[1], second[1]],
        [first[2], second[2]],
    ]
}

/// The same of eight outputs.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn eight_scales<const SCALES: u8>(block: &Block<'_>, half: usize) -> [__m256; 3] {
    let (halves, bytes) = (16 * half, 8 * half);
    let nothing = _mm256_set1_ps(-0.0);
    match SCALES {
        HALF | HALF_AND_ADDEND => {
            let scale = eight_halves(block.scales, halves);
            let addend = if SCALES == HALF {
                nothing
            } else {
                eight_halves(block.scales, 2 * LANES + halves)
            };
            [scale, scale, addend]
        }
        BYTES => {
            let scale = _mm256_cvtepu8_epi32(eight_bytes(block.scales, bytes));
            let minimum = _mm256_cvtepu8_epi32(eight_bytes(block.scales, LANES + bytes));
            let (scale, minimum) = (_mm256_cvtepi32_ps(scale), _mm256_cvtepi32_ps(minimum));
            let scale = _mm256_mul_ps(eight_halves(block.shared, halves), scale);
            let dmin = eight_halves(block.shared, 2 * LANES + halves);
            let minimum = _mm256_mul_ps(dmin, minimum);
            [scale, scale, _mm256_xor_ps(minimum, nothing)]
        }
        _ => {
            let d = eight_halves(block.shared, halves);
            let low = _mm256_cvtepi8_epi32(eight_bytes(block.scales, bytes));
            let high = _mm256_cvtepi8_epi32(eight_bytes(block.scales, LANES + bytes));
            let low = _mm256_mul_ps(d, _mm256_cvtepi32_ps(low));
            let high = _mm256_mul_ps(d, _mm256_cvtepi32_ps(high));
            [low, high, nothing]
        }
    }
}

/// The codes of four inputs of eight outputs, four bytes an output.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn code<const BITS: usize, const STEP: usize>(codes: &[u8], half: usize) -> __m256i {
    if BITS == 8 {
        return load(codes, STEP * 64 + half * 32);
    }
    let low = _mm256_set1_epi8(15);
    let four = load(codes, STEP % 4 * 64 + half * 32);
    let four = if STEP < 4 {
        _mm256_and_si256(four, low)
    } else {
        _mm256_and_si256(_mm256_srli_epi16::<4>(four), low)
    };
    match BITS {
        5 => {
            let bits = load(codes, 256 + half * 32);
            let bits = match STEP {
                0 => _mm256_slli_epi16::<4>(bits),
                1 => _mm256_slli_epi16::<3>(bits),
                2 => _mm256_slli_epi16::<2>(bits),
                3 => _mm256_slli_epi16::<1>(bits),
                4 => bits,
                5 => _mm256_srli_epi16::<1>(bits),
                6 => _mm256_srli_epi16::<2>(bits),
                _ => _mm256_srli_epi16::<3>(bits),
            };
            _mm256_or_si256(four, _mm256_and_si256(bits, _mm256_set1_epi8(0x10)))
        }
        6 => {
            let bits = load(codes, 256 + STEP % 2 * 64 + half * 32);
            let bits = match STEP / 2 {
                0 => _mm256_slli_epi16::<4>(bits),
                1 => _mm256_slli_epi16::<2>(bits),
                2 => bits,
                _ => _mm256_srli_epi16::<2>(bits),
            };
            _mm256_or_si256(four, _mm256_and_si256(bits, _mm256_set1_epi8(0x30)))
        }
        _ => four,
    }
}

/// The four codes of each of eight outputs as numbers, less the one that stands for zero.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn levels<const BITS: usize, const SCALES: u8>(codes: __m256i) -> [__m256; 4] {
    let middle = _mm256_set1_epi32(i32::from(const { layout::<BITS, SCALES>() }.middle()));
    let integers = if BITS == 8 {
        [
            _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(codes)),
            _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(codes)),
            _mm256_srai_epi32::<24>(_mm256_slli_epi32::<8>(codes)),
            _mm256_srai_epi32::<24>(codes),
        ]
    } else {
        let byte = _mm256_set1_epi32(255);
        [
            _mm256_and_si256(codes, byte),
            _mm256_and_si256(_mm256_srli_epi32::<8>(codes), byte),
            _mm256_and_si256(_mm256_srli_epi32::<16>(codes), byte),
            _mm256_srli_epi32::<24>(codes),
        ]
    };
    [
        _mm256_cvtepi32_ps(_mm256_sub_epi32(integers[0], middle)),
        _mm256_cvtepi32_ps(_mm256_sub_epi32(integers[1], middle)),
        _mm256_cvtepi32_ps(_mm256_sub_epi32(integers[2], middle)),
        _mm256_cvtepi32_ps(_mm256_sub_epi32(integers[3], middle)),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes = &bytes[at..at + 32];
    // SAFETY: 32 bytes have just been cut out.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Widens eight numbers of 16 bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn eight_halves(bytes: &[u8], at: usize) -> __m256 {
    let bytes = &bytes[at..at + 16];
    // SAFETY: 16 bytes have just been cut out.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn eight_bytes(bytes: &[u8], at: usize) -> __m128i {
    let bytes = &bytes[at..at + 8];
    // SAFETY: 8 bytes have just been cut out.
    unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_sums(sums: &[f32; LANES]) -> [__m256; 2] {
    let sums = sums.as_ptr();
    // SAFETY: there are sixteen.
    unsafe { [_mm256_loadu_ps(sums), _mm256_loadu_ps(sums.wrapping_add(8))] }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store_sums(from: [__m256; 2], sums: &mut [f32; LANES]) {
    let sums = sums.as_mut_ptr();
    // SAFETY: there are sixteen.
    unsafe {
        _mm256_storeu_ps(sums, from[0]);
        _mm256_storeu_ps(sums.wrapping_add(8), from[1]);
    }
}
