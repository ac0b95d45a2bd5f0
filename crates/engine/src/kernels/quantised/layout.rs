//! Where the scales and codes of a block lie in a panel.

use half::f16;

use super::BLOCK_INPUTS;
use crate::kernels::micro::LANES;
use crate::weights::Format;
use crate::weights::format::packed_scale;

/// Bytes of one bit of each code of a block.
const PLANE: usize = BLOCK_INPUTS * LANES / 8;

/// How the scales of a block are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// A scale of 16 bits for 32 numbers.
    Half,
    /// A scale and an addend of 16 bits each for 32 numbers.
    HalfAndAddend,
    /// A scale and a minimum of a byte each for 32 numbers, with factors of 16 bits for 256.
    Bytes,
    /// A signed scale of a byte for 16 numbers, with a factor of 16 bits for 256.
    SignedBytes,
}

/// How the panels of a format are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Of a code: 4, 5, 6 or 8. Codes of 8 bits are signed.
    pub(super) bits: usize,
    pub(super) scales: Scales,
}

impl Layout {
    /// Returns the layout of a format, if it is a quantised one.
    pub(crate) fn of(format: Format) -> Option<Self> {
        let (bits, scales) = match format {
            Format::F32 | Format::F16 | Format::Bf16 => return None,
            Format::Q4_0 => (4, Scales::Half),
            Format::Q4_1 => (4, Scales::HalfAndAddend),
            Format::Q5_0 => (5, Scales::Half),
            Format::Q5_1 => (5, Scales::HalfAndAddend),
            Format::Q8_0 => (8, Scales::Half),
            Format::Q4K => (4, Scales::Bytes),
            Format::Q5K => (5, Scales::Bytes),
            Format::Q6K => (6, Scales::SignedBytes),
        };
        Some(Self { bits, scales })
    }

    /// The code that stands for zero, if it is not zero.
    pub(super) fn middle(self) -> u8 {
        match self.scales {
            Scales::Half if self.bits < 8 => 1 << (self.bits - 1),
            Scales::SignedBytes => 1 << (self.bits - 1),
            _ => 0,
        }
    }

    /// Whether weights have an addend other than zero.
    pub(super) fn has_addend(self) -> bool {
        matches!(self.scales, Scales::HalfAndAddend | Scales::Bytes)
    }

    /// Whether the two halves of a block have scales of their own.
    pub(super) fn has_halves(self) -> bool {
        self.scales == Scales::SignedBytes
    }

    /// Blocks that share what comes before them, and its bytes.
    fn group(self) -> (usize, usize) {
        match self.scales {
            Scales::Half | Scales::HalfAndAddend => (1, 0),
            Scales::Bytes => (8, 4 * LANES),
            Scales::SignedBytes => (8, 2 * LANES),
        }
    }

    fn scale_bytes(self) -> usize {
        match self.scales {
            Scales::HalfAndAddend => 4 * LANES,
            Scales::Half | Scales::Bytes | Scales::SignedBytes => 2 * LANES,
        }
    }

    fn block_bytes(self) -> usize {
        self.scale_bytes() + self.bits * PLANE
    }

    /// Bytes of a panel of so many blocks.
    pub(crate) fn panel_bytes(self, blocks: usize) -> usize {
        let (group, shared) = self.group();
        blocks / group * (shared + group * self.block_bytes())
    }

    /// Returns where what a block shares with its neighbours starts, and where the block starts.
    fn place(self, block: usize) -> (usize, usize) {
        let (group, shared) = self.group();
        let start = block / group * (shared + group * self.block_bytes());
        (start, start + shared + block % group * self.block_bytes())
    }

    /// Finds a block of a panel.
    pub(super) fn block(self, panel: &[u8], block: usize) -> Block<'_> {
        let (shared, start) = self.place(block);
        let (_, shared_bytes) = self.group();
        let (scales, codes) = panel[start..start + self.block_bytes()].split_at(self.scale_bytes());
        Block {
            layout: self,
            shared: &panel[shared..shared + shared_bytes],
            scales,
            codes,
        }
    }

    /// The codes of a block and of all that follow, and how far those of two neighbours are apart, in formats
    /// whose blocks share nothing.
    pub(super) fn codes_from(self, panel: &[u8], block: usize) -> (&[u8], usize) {
        let (_, start) = self.place(block);
        (&panel[start + self.scale_bytes()..], self.block_bytes())
    }

    /// Writes a row of a matrix, given as blocks of its format, into a panel of zeros.
    pub(crate) fn write_row(self, format: Format, row: &[u8], lane: usize, panel: &mut [u8]) {
        let (elements, size) = format.block();
        let mut codes = [0; 256];
        for (number, stored) in row.chunks_exact(size).enumerate() {
            format.codes(stored, &mut codes);
            for (sub, codes) in codes[..elements].chunks_exact(BLOCK_INPUTS).enumerate() {
                let (shared, start) = self.place(number * (elements / BLOCK_INPUTS) + sub);
                self.write_scales(stored, sub, lane, panel, shared, start);
                let to = &mut panel[start + self.scale_bytes()..];
                self.write_codes(codes, lane, to);
            }
        }
    }

    fn write_scales(
        self,
        stored: &[u8],
        sub: usize,
        lane: usize,
        panel: &mut [u8],
        shared: usize,
        start: usize,
    ) {
        let mut copy = |from: usize, to: usize| {
            panel[to + 2 * lane..][..2].copy_from_slice(&stored[from..from + 2]);
        };
        match self.scales {
            Scales::Half => copy(0, start),
            Scales::HalfAndAddend => {
                copy(0, start);
                copy(2, start + 2 * LANES);
            }
            Scales::Bytes => {
                copy(0, shared);
                copy(2, shared + 2 * LANES);
                let (scale, minimum) = packed_scale(&stored[4..16], sub);
                panel[start + lane] = scale;
                panel[start + LANES + lane] = minimum;
            }
            Scales::SignedBytes => {
                copy(208, shared);
                panel[start + lane] = stored[192 + 2 * sub];
                panel[start + LANES + lane] = stored[192 + 2 * sub + 1];
            }
        }
    }

    fn write_codes(self, codes: &[u8], lane: usize, to: &mut [u8]) {
        for (input, &code) in codes.iter().enumerate() {
            let (g, p) = (input / 4, 4 * lane + input % 4);
            if self.bits == 8 {
                to[g * 64 + p] = code;
                continue;
            }
            to[g % 4 * 64 + p] |= (code & 15) << (g / 4 * 4);
            match self.bits {
                5 => to[256 + p] |= (code >> 4) << g,
                6 => to[256 + g % 2 * 64 + p] |= (code >> 4) << (g / 2 * 2),
                _ => {}
            }
        }
    }
}

/// A block of a panel: 32 inputs of 16 outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    pub(super) layout: Layout,
    /// What it shares with the other blocks of the same 256 inputs.
    pub(super) shared: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) codes: &'a [u8],
}

impl Block<'_> {
    /// The code of an input of an output.
    pub(super) fn code(&self, lane: usize, input: usize) -> u8 {
        let (g, p) = (input / 4, 4 * lane + input % 4);
        if self.layout.bits == 8 {
            return self.codes[g * 64 + p];
        }
        let four = self.codes[g % 4 * 64 + p] >> (g / 4 * 4) & 15;
        match self.layout.bits {
            5 => four | (self.codes[256 + p] >> g & 1) << 4,
            6 => four | (self.codes[256 + g % 2 * 64 + p] >> (g / 2 * 2) & 3) << 4,
            _ => four,
        }
    }

    /// The code as a number, less the one that stands for zero.
    pub(super) fn level(&self, lane: usize, input: usize) -> i32 {
        let code = self.code(lane, input);
        if self.layout.bits == 8 {
            i32::from(code.cast_signed())
        } else {
            i32::from(code) - i32::from(self.layout.middle())
        }
    }

    /// The scale of an output in one half of the block.
    pub(super) fn scale(&self, lane: usize, half: usize) -> f32 {
        match self.layout.scales {
            Scales::Half | Scales::HalfAndAddend => half_at(self.scales, lane),
            Scales::Bytes => half_at(self.shared, lane) * f32::from(self.scales[lane]),
            Scales::SignedBytes => {
                let scale = self.scales[half * LANES + lane].cast_signed();
                half_at(self.shared, lane) * f32::from(scale)
            }
        }
    }

    /// What is added to a weight. Minus zero adds nothing, to either zero.
    pub(super) fn addend(&self, lane: usize) -> f32 {
        match self.layout.scales {
            Scales::Half | Scales::SignedBytes => -0.0,
            Scales::HalfAndAddend => half_at(self.scales, LANES + lane),
            Scales::Bytes => {
                -(half_at(self.shared, LANES + lane) * f32::from(self.scales[LANES + lane]))
            }
        }
    }

    /// The dequantised weight.
    pub(super) fn weight(&self, lane: usize, input: usize) -> f32 {
        let level = self.level(lane, input) as f32;
        self.scale(lane, input / 16)
            .mul_add(level, self.addend(lane))
    }
}

fn half_at(halves: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([halves[2 * index], halves[2 * index + 1]]).to_f32()
}
