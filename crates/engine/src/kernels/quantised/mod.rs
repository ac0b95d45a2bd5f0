//! Quantised matrices as the kernels read them.
//!
//! As in [`panels`](super::panels), 16 outputs make a panel. Within it, 32 inputs of all 16 outputs make a
//! block: their scales, then their codes, four neighbouring inputs of an output side by side. A 32-byte
//! register then holds four inputs of eight outputs, which is what the integer instructions add up, and
//! shifts of the same register give one input of eight outputs, which is what `f32` needs. What 256 numbers
//! share in the "K" formats comes before their eight blocks. The scales keep their stored bits, so a panel
//! is as large as the file, or 3 % larger where six-bit scales take a byte.
//!
//! ```text
//! codes of a block, byte p = 4 · output + input % 4 of a step, step g = input / 4 (0 to 7)
//!   8 bits       [g][p]
//!   4 bits       [g % 4][p], low half for g < 4, high half for the others
//!   fifth bit    [p], bit g
//!   fifth, sixth [g % 2][p], bits 2 (g / 2)
//! ```
//!
//! A weight is `scale · (code - middle) + addend`, one rounding, which are the bits of its dequantised value:
//! the product is exact. With `f32` activations ([`QuantisedPanels::dot`], [`QuantisedPanels::widen`]) a
//! quantised matrix is thus the `f32` matrix of its dequantised weights, bit for bit. With activations in
//! [eight bits](int8) the products of a block are exact integers, and blocks are added up in their order:
//! no tile or thread changes a bit there either.

/// Calls the kernel of a level of instructions. All give the same bits.
macro_rules! at_level {
    ($level:expr => $kernel:ident($($argument:expr),*)) => {{
        use $crate::kernels::isa::Level;
        use $crate::kernels::quantised as kernels;
        #[allow(unsafe_code, reason = "calling a safe function compiled for detected CPU features")]
        match $level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the features of the level were detected.
            Level::Avx512 => unsafe { kernels::avx512::$kernel($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { kernels::avx2::$kernel($($argument),*) },
            _ => kernels::portable::$kernel($($argument),*),
        }
    }};
}

/// Repeats something for the eight steps of a block, whose number is a constant: what is indexed by it stays in
/// registers.
#[cfg(target_arch = "x86_64")]
macro_rules! for_each_step {
    ($step:ident => $body:block) => {{
        for_each_step!(@ $step $body 0 1 2 3 4 5 6 7);
    }};
    (@ $step:ident $body:block $($number:literal)*) => {
        $({
            const $step: usize = $number;
            $body
        })*
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod int8;
mod layout;
mod portable;
#[cfg(test)]
mod tests;

use super::isa;
use super::micro::LANES;
use int8::{Blocks, Int8Row, Tiles, Unpacked};
pub(crate) use layout::Layout;

/// Inputs of a block.
pub(crate) const BLOCK_INPUTS: usize = 32;
/// Where a panel starts, so that a register never spans two cache lines.
const ALIGNMENT: usize = 64;

/// In which numbers a quantised matrix multiplies its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activations {
    /// As they are: the model is exactly the `f32` model of its dequantised weights. This is the default.
    #[default]
    F32,
    /// Rounded to eight bits with a scale for each 32 of a row, in training's forward pass and in sampling
    /// alike. Gradients go through the dequantised weights.
    Int8,
}

/// A quantised matrix in panels.
#[derive(Clone, Debug)]
pub(crate) struct QuantisedPanels {
    layout: Layout,
    blocks: usize,
    activations: Activations,
    bytes: Vec<u8>,
    /// The first byte in use.
    start: usize,
}

impl QuantisedPanels {
    /// Makes room for a matrix, all zero.
    pub(crate) fn zeros(
        layout: Layout,
        outputs: usize,
        inputs: usize,
        activations: Activations,
    ) -> Self {
        let blocks = inputs / BLOCK_INPUTS;
        let length = outputs.div_ceil(LANES) * layout.panel_bytes(blocks);
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self {
            layout,
            blocks,
            activations,
            bytes,
            start,
        }
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        self.layout.panel_bytes(self.blocks)
    }

    /// Returns the bytes of all panels, each of [`panel_bytes`](Self::panel_bytes).
    pub(crate) fn panels_mut(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - (ALIGNMENT - self.start);
        &mut self.bytes[self.start..end]
    }

    pub(crate) fn activations(&self) -> Activations {
        self.activations
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len() - ALIGNMENT
    }

    fn panel(&self, panel: usize) -> &[u8] {
        let length = self.layout.panel_bytes(self.blocks);
        &self.bytes[self.start + panel * length..][..length]
    }

    /// Widens one row of the matrix.
    pub(crate) fn row(&self, output: usize, to: &mut [f32]) {
        let panel = self.panel(output / LANES);
        for (block, to) in to.chunks_exact_mut(BLOCK_INPUTS).enumerate() {
            let block = self.layout.block(panel, block);
            for (input, to) in to.iter_mut().enumerate() {
                *to = block.weight(output % LANES, input);
            }
        }
    }

    /// Widens some inputs of a panel, from a multiple of 16 on, as [`Panels`](super::panels::Panels) has them.
    pub(crate) fn widen(&self, panel: usize, input: usize, to: &mut [f32]) {
        let panel = self.panel(panel);
        let inputs = to.len() / LANES;
        assert!(
            input.is_multiple_of(16) && inputs.is_multiple_of(16),
            "halves of blocks"
        );
        let mut at = input;
        let mut rest = to;
        while !rest.is_empty() {
            let first = at % BLOCK_INPUTS;
            let count = (BLOCK_INPUTS - first).min(rest.len() / LANES);
            let (part, later) = rest.split_at_mut(count * LANES);
            let block = self.layout.block(panel, at / BLOCK_INPUTS);
            at_level!(isa::level() => widen(&block, first, part));
            at += count;
            rest = later;
        }
    }

    /// Adds the products of one row of `f32` with a panel to its sums.
    pub(crate) fn dot(&self, panel: usize, x: &[f32], sums: &mut [f32; LANES]) {
        assert_eq!(x.len(), self.blocks * BLOCK_INPUTS, "inputs");
        let panel = self.panel(panel);
        at_level!(isa::level() => dot(self.layout, panel, x, sums));
    }

    /// Adds the products of one row in eight bits with a panel to its sums.
    pub(crate) fn dot_int8(&self, panel: usize, x: Int8Row<'_>, sums: &mut [f32; LANES]) {
        assert_eq!(x.len(), self.blocks, "blocks of inputs");
        let panel = self.panel(panel);
        at_level!(isa::int8_level() => dot_int8(self.layout, panel, x, sums));
    }

    /// Unpacks some blocks of a panel, for several rows.
    pub(crate) fn unpack<'a>(
        &'a self,
        panel: usize,
        first: usize,
        count: usize,
        to: &'a mut Unpacked,
    ) -> Tiles<'a> {
        const CODES: usize = BLOCK_INPUTS * LANES;
        let (layout, panel) = (self.layout, self.panel(panel));
        let has_bytes = layout.bits == 8;
        if !has_bytes {
            to.codes.resize(count * CODES, 0);
        }
        to.scales.resize(count, [[0.0; LANES]; 3]);
        for (index, scales) in to.scales.iter_mut().enumerate() {
            let block = layout.block(panel, first + index);
            let codes = if has_bytes {
                &mut []
            } else {
                &mut to.codes[index * CODES..][..CODES]
            };
            at_level!(isa::level() => unpack(&block, codes, scales));
        }
        let (codes, stride) = if has_bytes {
            layout.codes_from(panel, first)
        } else {
            (&to.codes[..], CODES)
        };
        Tiles {
            layout,
            blocks: Blocks {
                codes,
                stride,
                scales: &to.scales,
            },
        }
    }
}
