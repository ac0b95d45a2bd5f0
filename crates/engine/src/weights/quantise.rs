//! From numbers to the blocks of GGUF's storage formats, which [`Format::dequantise`] turns back.
//!
//! Q8_0 and Q5_0 have one scale for 32 numbers, which follows from the largest of them, so there is one right
//! answer: the bits are those of llama.cpp. The "K" formats (in [`k`]) have a scale for each part of a block of
//! 256, and the best one has to be searched.

mod k;

use half::{bf16, f16};
use rayon::prelude::*;

use super::Format;

/// Turns numbers into a format, or returns nothing if it is one that cannot be written. Rows are whole blocks.
#[must_use]
pub fn quantise(values: &[f32], format: Format) -> Option<Vec<u8>> {
    let (elements, size) = format.block();
    let write: fn(&[f32], &mut [u8]) = match format {
        Format::F32 => |x, out| out.copy_from_slice(&x[0].to_le_bytes()),
        Format::F16 => |x, out| out.copy_from_slice(&f16::from_f32(x[0]).to_le_bytes()),
        Format::Bf16 => |x, out| out.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()),
        Format::Q8_0 => q8_0,
        Format::Q5_0 => q5_0,
        Format::Q4K => k::q4_k,
        Format::Q6K => k::q6_k,
        _ => return None,
    };
    if !values.len().is_multiple_of(elements) {
        return None;
    }
    // Many blocks for each thread, also where a block is one number.
    const AT_ONCE: usize = 4096;
    let mut bytes = vec![0; values.len() / elements * size];
    let parts = bytes.par_chunks_mut(AT_ONCE / elements * size);
    parts.zip(values.par_chunks(AT_ONCE)).for_each(|(out, x)| {
        let blocks = x.chunks_exact(elements).zip(out.chunks_exact_mut(size));
        blocks.for_each(|(x, out)| write(x, out));
    });
    Some(bytes)
}

/// Returns the first number that a format cannot hold, with its index, and as what it would be read again.
#[must_use]
pub fn unfit(values: &[f32], format: Format) -> Option<(usize, f32)> {
    let most = match format {
        Format::F32 => f32::MAX,
        Format::Bf16 => bf16::MAX.to_f32(),
        // Blocks reach a little further, by the integers that their scale is multiplied with.
        _ => f16::MAX.to_f32(),
    };
    let index = values.iter().position(|x| x.is_nan() || x.abs() > most)?;
    let value = values[index];
    let read = if value.is_nan() {
        value
    } else {
        f32::INFINITY.copysign(value)
    };
    Some((index, read))
}

/// `x = d · q`: the largest is 127.
fn q8_0(x: &[f32], out: &mut [u8]) {
    let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (x, out) in x.iter().zip(&mut out[2..]) {
        *out = ((x * inverse).round() as i8).cast_unsigned();
    }
}

/// `x = d · (q - 16)`: the largest, with its sign, is -16, which has no opposite.
fn q5_0(x: &[f32], out: &mut [u8]) {
    let d = signed_largest(x) / -16.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let q = |x: f32| ((x * inverse + 16.5) as u8).min(31);
    let mut fifth = 0u32;
    for i in 0..16 {
        let (low, high) = (q(x[i]), q(x[i + 16]));
        out[6 + i] = low & 15 | high << 4;
        fifth |= u32::from(low >> 4) << i | u32::from(high >> 4) << (i + 16);
    }
    out[2..6].copy_from_slice(&fifth.to_le_bytes());
}

/// Returns the number that is farthest from zero, the first of several.
fn signed_largest(x: &[f32]) -> f32 {
    x.iter().fold(
        0.0f32,
        |most, x| if x.abs() > most.abs() { *x } else { most },
    )
}

#[cfg(test)]
mod tests;
