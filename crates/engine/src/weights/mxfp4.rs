//! MXFP4: four-bit floating-point numbers, 32 of which share a power of two.
//!
//! Its numbers are `±{0, ½, 1, 1½, 2, 3, 4, 6} · 2^(e − 127)`. Twice the number before the power is a whole one from
//! −12 to 12, so a block is a block of Q5_0 with the scale `2^(e − 128)`, and no bit of any weight changes: that is how such
//! weights are held, with the kernels of Q5_0, in 22 bytes a block instead of 17.

use half::f16;

use super::Format;
use crate::Error;

/// The number of the format in GGUF files.
pub(crate) const GGUF_ID: u32 = 39;
/// Elements of a block, and its bytes in GGUF files.
pub(crate) const BLOCK: (usize, usize) = (32, 17);

/// Twice the numbers that the codes stand for.
const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// How the codes of a block are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Low halves of the 16 bytes, then high halves: GGUF.
    Halves,
    /// Low and high half of each byte in turn: safetensors.
    Neighbours,
}

/// Turns a block into one of Q5_0, whose weights are the same. `None` if its power of two is none of f16.
fn convert(exponent: u8, codes: &[u8], order: Order, to: &mut [u8]) -> Option<()> {
    let mut levels = [0; 32];
    for (i, &byte) in codes[..16].iter().enumerate() {
        let (low, high) = match order {
            Order::Halves => (i, i + 16),
            Order::Neighbours => (2 * i, 2 * i + 1),
        };
        levels[low] = LEVELS[usize::from(byte & 15)];
        levels[high] = LEVELS[usize::from(byte >> 4)];
    }
    let exponent = i32::from(exponent) - 128;
    let scale = match exponent {
        -24..=15 => f16::from_f32(2f32.powi(exponent)),
        _ if levels.iter().all(|&level| level == 0) => f16::ZERO,
        _ => return None,
    };
    to[..2].copy_from_slice(&scale.to_le_bytes());
    let mut fifth = 0u32;
    for i in 0..16 {
        let [low, high] = [i, i + 16].map(|at| (levels[at] + 16) as u8);
        fifth |= u32::from(low >> 4) << i | u32::from(high >> 4) << (i + 16);
        to[6 + i] = low & 15 | (high & 15) << 4;
    }
    to[2..6].copy_from_slice(&fifth.to_le_bytes());
    Some(())
}

/// Turns blocks into those of Q5_0: `blocks` gives the exponent and the 16 bytes of each.
pub(crate) fn to_q5_0<'a>(
    tensor: &str,
    blocks: impl ExactSizeIterator<Item = (u8, &'a [u8])>,
    order: Order,
) -> Result<Vec<u8>, Error> {
    let size = Format::Q5_0.block().1;
    let mut bytes = vec![0; blocks.len() * size];
    for ((exponent, codes), to) in blocks.zip(bytes.chunks_exact_mut(size)) {
        convert(exponent, codes, order, to).ok_or_else(|| {
            let found = i32::from(exponent) - 127;
            Error::unsupported(
                format!("MXFP4 scale of `{tensor}`"),
                format!("2^{found}"),
                "powers of two from 2^-23 to 2^16",
            )
        })?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_every_weight() {
        let codes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let number = |code: u8| {
            let sign = if code < 8 { 1.0 } else { -1.0 };
            sign * numbers[usize::from(code % 8)]
        };
        for (order, exponent) in [(Order::Halves, 120u8), (Order::Neighbours, 127)] {
            let blocks = [(exponent, &codes[..])].into_iter();
            let bytes = to_q5_0("w", blocks, order).unwrap();
            let mut values = [0.0; 32];
            Format::Q5_0.dequantise(&bytes, &mut values);
            let scale = 2f32.powi(i32::from(exponent) - 127);
            for (i, &byte) in codes.iter().enumerate() {
                let (low, high) = match order {
                    Order::Halves => (i, i + 16),
                    Order::Neighbours => (2 * i, 2 * i + 1),
                };
                assert_eq!(values[low], scale * number(byte & 15), "{order:?}");
                assert_eq!(values[high], scale * number(byte >> 4), "{order:?}");
            }
        }
    }

    #[test]
    fn a_power_of_two_that_f16_lacks_is_refused_unless_all_is_zero() {
        let convert = |exponent, codes: &[u8; 16]| {
            to_q5_0("w", [(exponent, &codes[..])].into_iter(), Order::Halves)
        };
        let message = convert(50, &[1; 16]).unwrap_err().to_string();
        assert!(message.contains("MXFP4 scale of `w` `2^-77`"), "{message}");
        let bytes = convert(0, &[0x80; 16]).unwrap();
        let mut values = [1.0; 32];
        Format::Q5_0.dequantise(&bytes, &mut values);
        assert_eq!(values, [0.0; 32]);
    }
}
