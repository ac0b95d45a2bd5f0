//! The storage formats of GGUF tensors, and turning blocks of them into numbers.
//!
//! Numbers are stored in blocks that share scales. The simple formats have 32 numbers a block:
//!
//! ```text
//! Q8_0            x = d · q             d: f16, q: i8
//! Q4_0, Q5_0      x = d · (q - 2^(n-1)) q: n unsigned bits
//! Q4_1, Q5_1      x = d · q + m         m: f16
//! ```
//!
//! The "K" formats have 256, in sub-blocks with scales of their own that are quantised too:
//!
//! ```text
//! Q4_K, Q5_K      x = (d · s) · q - (dmin · m)    eight sub-blocks of 32; s, m: 6 bits each
//! Q6_K            x = (d · s) · (q - 32)          sixteen sub-blocks of 16; s: i8
//! ```
//!
//! In all of them, low halves of bytes hold the first numbers of a run and high halves the ones
//! that follow the whole run, so numbers are not stored in their order.

use half::f16;

use super::Dtype;
use super::tensor::widen;
use crate::Error;

/// A storage format of tensors in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single-precision number.
    Bf16,
    /// Four bits and a scale, blocks of 32.
    Q4_0,
    /// Four bits, a scale and a minimum, blocks of 32.
    Q4_1,
    /// Five bits and a scale, blocks of 32.
    Q5_0,
    /// Five bits, a scale and a minimum, blocks of 32.
    Q5_1,
    /// Eight bits and a scale, blocks of 32.
    Q8_0,
    /// Four bits, blocks of 256 with scales and minima of their parts.
    Q4K,
    /// Five bits, blocks of 256 with scales and minima of their parts.
    Q5K,
    /// Six bits, blocks of 256 with scales of their parts.
    Q6K,
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

impl Format {
    /// Returns the format with the given number in the file.
    pub(crate) fn from_id(id: u32, tensor: &str) -> Result<Self, Error> {
        Ok(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            other => {
                return Err(Error::unsupported(
                    format!("GGUF format of `{tensor}`"),
                    format!("type {other}"),
                    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K",
                ));
            }
        })
    }

    /// Returns the number of the format in files.
    #[must_use]
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
        }
    }

    /// Returns the plain element type, if the format is one.
    #[must_use]
    pub fn as_dtype(self) -> Option<Dtype> {
        match self {
            Self::F32 => Some(Dtype::F32),
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::Bf16),
            _ => None,
        }
    }

    /// Returns the number of elements in a block, and its size in bytes.
    #[must_use]
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Returns the name, in lower case as commands spell it: `q4_k`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
        }
    }

    /// Turns whole blocks into little-endian f32; plain formats are left as they are.
    #[must_use]
    pub fn dequantise_to_bytes(self, blocks: &[u8]) -> Vec<u8> {
        if self.as_dtype().is_some() {
            return blocks.to_vec();
        }
        let (elements, size) = self.block();
        let mut bytes = Vec::with_capacity(blocks.len() / size * elements * 4);
        let mut values = [0.0; 256];
        for block in blocks.chunks_exact(size) {
            self.dequantise_block(block, &mut values[..elements]);
            bytes.extend(values[..elements].iter().flat_map(|x| x.to_le_bytes()));
        }
        bytes
    }

    /// Turns whole blocks into numbers.
    ///
    /// # Panics
    ///
    /// When `values` is not as long as the blocks say.
    pub fn dequantise(self, blocks: &[u8], values: &mut [f32]) {
        let (elements, size) = self.block();
        assert_eq!(
            (blocks.len() % size, blocks.len() / size * elements),
            (0, values.len()),
            "whole blocks of {} and their numbers",
            self.name()
        );
        if let Some(dtype) = self.as_dtype() {
            return widen(dtype, blocks, values);
        }
        let blocks = blocks.chunks_exact(size);
        blocks
            .zip(values.chunks_exact_mut(elements))
            .for_each(|(block, values)| self.dequantise_block(block, values));
    }

    /// Turns one block of a quantised format into numbers.
    fn dequantise_block(self, block: &[u8], values: &mut [f32]) {
        let mut codes = [0; 256];
        self.codes(block, &mut codes);
        let middle = f32::from(self.middle());
        let part = if self == Self::Q6K { 16 } else { 32 };
        for (at, (x, q)) in values.chunks_mut(part).zip(codes.chunks(part)).enumerate() {
            let numbers = x.iter_mut().zip(q);
            match self {
                Self::F32 | Self::F16 | Self::Bf16 => {}
                Self::Q4_0 | Self::Q5_0 => {
                    let d = half_at(block, 0);
                    numbers.for_each(|(x, &q)| *x = d * (f32::from(q) - middle));
                }
                Self::Q4_1 | Self::Q5_1 => {
                    let (d, m) = (half_at(block, 0), half_at(block, 2));
                    numbers.for_each(|(x, &q)| *x = d * f32::from(q) + m);
                }
                Self::Q8_0 => {
                    let d = half_at(block, 0);
                    numbers.for_each(|(x, q)| *x = d * f32::from(q.cast_signed()));
                }
                Self::Q4K | Self::Q5K => {
                    let (scale, minimum) = packed_scale(&block[4..16], at);
                    let scale = half_at(block, 0) * f32::from(scale);
                    let minimum = half_at(block, 2) * f32::from(minimum);
                    numbers.for_each(|(x, &q)| *x = scale * f32::from(q) - minimum);
                }
                Self::Q6K => {
                    let scale = half_at(block, 208) * f32::from(block[192 + at].cast_signed());
                    numbers.for_each(|(x, &q)| *x = scale * (f32::from(q) - middle));
                }
            }
        }
    }

    /// The code that stands for zero in formats whose codes have no sign and no minimum.
    fn middle(self) -> u8 {
        match self {
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q6K => 32,
            _ => 0,
        }
    }

    /// Reads the integers of one block, in the order of the numbers. Those of Q8_0 are signed; plain formats
    /// have none.
    pub(crate) fn codes(self, block: &[u8], codes: &mut [u8; 256]) {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => {}
            Self::Q4_0 => codes_32(&block[2..], 0, codes),
            Self::Q4_1 => codes_32(&block[4..], 0, codes),
            Self::Q5_0 => codes_32(&block[6..], bits_at(block, 2), codes),
            Self::Q5_1 => codes_32(&block[8..], bits_at(block, 4), codes),
            Self::Q8_0 => codes[..32].copy_from_slice(&block[2..34]),
            Self::Q4K => codes_4_or_5k(&[0; 32], &block[16..], codes),
            Self::Q5K => codes_4_or_5k(&block[16..48], &block[48..], codes),
            Self::Q6K => codes_6k(block, codes),
        }
    }
}

fn half_at(block: &[u8], start: usize) -> f32 {
    f16::from_le_bytes([block[start], block[start + 1]]).to_f32()
}

fn bits_at(block: &[u8], start: usize) -> u32 {
    u32::from_le_bytes([
        block[start],
        block[start + 1],
        block[start + 2],
        block[start + 3],
    ])
}

/// Sixteen bytes of halves, with a fifth bit for each of the 32 numbers in `fifth`.
fn codes_32(halves: &[u8], fifth: u32, codes: &mut [u8; 256]) {
    for (i, &byte) in halves[..16].iter().enumerate() {
        codes[i] = byte & 15 | ((fifth >> i & 1) << 4) as u8;
        codes[i + 16] = byte >> 4 | ((fifth >> (i + 16) & 1) << 4) as u8;
    }
}

/// Bit `n` of `fifth[i]` is the fifth bit of number `i` in sub-block `n`.
fn codes_4_or_5k(fifth: &[u8], halves: &[u8], codes: &mut [u8; 256]) {
    for (sub, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (i, code) in codes.iter_mut().enumerate() {
            let byte = halves[sub / 2 * 32 + i];
            let four = if sub % 2 == 0 { byte & 15 } else { byte >> 4 };
            *code = four | (fifth[i] >> sub & 1) << 4;
        }
    }
}

/// Unpacks the 6-bit scale and minimum of a sub-block from 12 bytes.
///
/// The first four of each lie in the low six bits of bytes 0–3 and 4–7; the last four have their
/// low four bits in bytes 8–11 and their high two in the top bits of the first eight bytes.
pub(crate) fn packed_scale(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let low = packed[sub + 4];
        (
            low & 15 | packed[sub - 4] >> 6 << 4,
            low >> 4 | packed[sub] >> 6 << 4,
        )
    }
}

/// Two halves of 128 numbers: four runs of 32, whose low bits lie in 64 bytes and high in 32.
fn codes_6k(block: &[u8], codes: &mut [u8; 256]) {
    for (half, codes) in codes.chunks_exact_mut(128).enumerate() {
        let low = &block[half * 64..][..64];
        let high = &block[128 + half * 32..][..32];
        for (run, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (i, code) in codes.iter_mut().enumerate() {
                let byte = low[run % 2 * 32 + i];
                let four = if run < 2 { byte & 15 } else { byte >> 4 };
                *code = four | (high[i] >> (2 * run) & 3) << 4;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn blocks_have_the_values_that_the_gguf_package_gives_them() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/reference/gguf/blocks.safetensors"
        );
        let bytes = std::fs::read(path).unwrap();
        let reference = SafeTensors::deserialize(&bytes).unwrap();
        for id in [2, 3, 6, 7, 8, 12, 13, 14] {
            let format = Format::from_id(id, "t").unwrap();
            assert_eq!(format.id(), id);
            let blocks = reference.tensor(&format!("{id}.blocks")).unwrap();
            let values = reference.tensor(&format!("{id}.values")).unwrap();
            let ours = format.dequantise_to_bytes(blocks.data());
            // The order of operations is the same, so the bits are too.
            assert!(ours == values.data(), "{format:?} differs");
        }
    }

    #[test]
    fn an_unknown_format_is_refused_by_number() {
        let message = Format::from_id(16, "output.weight")
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("unsupported GGUF format of `output.weight` `type 16`"),
            "{message}"
        );
    }
}
