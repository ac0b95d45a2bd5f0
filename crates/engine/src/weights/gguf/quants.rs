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

use crate::Error;
use crate::weights::Dtype;

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
    pub(super) fn from_id(id: u32, tensor: &str) -> Result<Self, Error> {
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

    /// Turns whole blocks into little-endian f32; plain formats are left as they are.
    #[must_use]
    pub fn dequantise_to_bytes(self, blocks: &[u8]) -> Vec<u8> {
        let (elements, size) = self.block();
        let mut bytes = Vec::with_capacity(blocks.len() / size * elements * 4);
        let mut values = [0.0; 256];
        for block in blocks.chunks_exact(size) {
            match self {
                Self::F32 | Self::F16 | Self::Bf16 => return blocks.to_vec(),
                Self::Q4_0 => dequantise_32(
                    &block[2..],
                    0,
                    |q| half_at(block, 0) * (q - 8.0),
                    &mut values,
                ),
                Self::Q4_1 => dequantise_32(
                    &block[4..],
                    0,
                    |q| half_at(block, 0) * q + half_at(block, 2),
                    &mut values,
                ),
                Self::Q5_0 => dequantise_32(
                    &block[6..],
                    bits_at(block, 2),
                    |q| half_at(block, 0) * (q - 16.0),
                    &mut values,
                ),
                Self::Q5_1 => dequantise_32(
                    &block[8..],
                    bits_at(block, 4),
                    |q| half_at(block, 0) * q + half_at(block, 2),
                    &mut values,
                ),
                Self::Q8_0 => {
                    let d = half_at(block, 0);
                    for (value, &q) in values.iter_mut().zip(&block[2..]) {
                        *value = d * f32::from(q.cast_signed());
                    }
                }
                Self::Q4K => dequantise_4_or_5k(block, &[0; 32], &block[16..], &mut values),
                Self::Q5K => dequantise_4_or_5k(block, &block[16..48], &block[48..], &mut values),
                Self::Q6K => dequantise_6k(block, &mut values),
            }
            bytes.extend(values[..elements].iter().flat_map(|x| x.to_le_bytes()));
        }
        bytes
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
fn dequantise_32(halves: &[u8], fifth: u32, value: impl Fn(f32) -> f32, values: &mut [f32; 256]) {
    for (i, &byte) in halves[..16].iter().enumerate() {
        let low = u32::from(byte & 15) | (fifth >> i & 1) << 4;
        let high = u32::from(byte >> 4) | (fifth >> (i + 16) & 1) << 4;
        values[i] = value(low as f32);
        values[i + 16] = value(high as f32);
    }
}

/// Bit `n` of `fifth[i]` is the fifth bit of number `i` in sub-block `n`.
fn dequantise_4_or_5k(block: &[u8], fifth: &[u8], halves: &[u8], values: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let packed = &block[4..16];
    for sub in 0..8 {
        let (scale, minimum) = packed_scale(packed, sub);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for i in 0..32 {
            let byte = halves[sub / 2 * 32 + i];
            let four = if sub % 2 == 0 { byte & 15 } else { byte >> 4 };
            let q = four | (fifth[i] >> sub & 1) << 4;
            values[sub * 32 + i] = scale * f32::from(q) - minimum;
        }
    }
}

/// Unpacks the 6-bit scale and minimum of a sub-block from 12 bytes.
///
/// The first four of each lie in the low six bits of bytes 0–3 and 4–7; the last four have their
/// low four bits in bytes 8–11 and their high two in the top bits of the first eight bytes.
fn packed_scale(packed: &[u8], sub: usize) -> (u8, u8) {
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
fn dequantise_6k(block: &[u8], values: &mut [f32; 256]) {
    let d = half_at(block, 208);
    for half in 0..2 {
        let low = &block[half * 64..][..64];
        let high = &block[128 + half * 32..][..32];
        let scales = &block[192 + half * 8..][..8];
        for run in 0..4 {
            for i in 0..32 {
                let byte = low[run % 2 * 32 + i];
                let four = if run < 2 { byte & 15 } else { byte >> 4 };
                let q = four | (high[i] >> (2 * run) & 3) << 4;
                let scale = d * f32::from(scales[run * 2 + i / 16].cast_signed());
                values[half * 128 + run * 32 + i] = scale * (f32::from(q) - 32.0);
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
