//! Weight matrices as the kernels read them.
//!
//! A matrix `W` of shape `[outputs, inputs]` is cut into panels of 16 outputs. Within a panel the
//! elements are ordered by input: `panel[k · 16 + j] = W[16 p + j][k]`. One step of a product over `k`
//! then reads 16 neighbours, whether one row is multiplied (decoding, bound by memory) or thousands
//! (training), and every 16 × 16 block is contiguous, so that the transposed product of the backward
//! pass turns blocks around as it goes instead of keeping a second copy. Elements keep the precision
//! they were given in and are widened in registers. Outputs and inputs are padded with zeros to 16.

#![expect(
    unsafe_code,
    reason = "calls the vector kernel that transposes a block"
)]

use rayon::prelude::*;

use super::isa;
use super::micro::{self, LANES, widen_bf16, widen_f16};
use super::quantised::{Activations, BLOCK_INPUTS, Layout, QuantisedPanels};
use crate::weights::{Dtype, Format, StoredTensor, quantise};

/// Elements of a 16 × 16 block.
pub(crate) const BLOCK: usize = LANES * LANES;

/// A matrix in panels.
#[derive(Clone, Debug)]
pub(crate) struct Panels {
    outputs: usize,
    inputs: usize,
    elements: Elements,
}

#[derive(Clone, Debug)]
enum Elements {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    F16(Vec<u16>),
    Quantised(QuantisedPanels),
}

/// How the kernels multiply by a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    /// Its elements are plain numbers.
    Plain(Dtype),
    /// It is quantised, and its inputs stay as they are.
    Widened(&'a QuantisedPanels),
    /// It is quantised, and so are its inputs.
    Int8(&'a QuantisedPanels),
}

impl Panels {
    /// Packs a tensor of shape `[outputs, inputs]` in a format: its own, or another one that its numbers are
    /// rounded to. No more than a few rows exist in any other form.
    pub(crate) fn pack(
        tensor: &StoredTensor<'_>,
        format: Format,
        activations: Activations,
    ) -> Self {
        let [outputs, inputs] = *tensor.shape() else {
            unreachable!("the shape of {} was checked before packing", tensor.name())
        };
        let elements = match format.as_dtype() {
            Some(Dtype::F32) => Elements::F32(pack_plain(tensor, |x| x)),
            Some(Dtype::Bf16) => {
                Elements::Bf16(pack_plain(tensor, |x| half::bf16::from_f32(x).to_bits()))
            }
            Some(Dtype::F16) => {
                Elements::F16(pack_plain(tensor, |x| half::f16::from_f32(x).to_bits()))
            }
            None => Elements::Quantised(pack_quantised(tensor, format, activations)),
        };
        Self {
            outputs,
            inputs,
            elements,
        }
    }

    /// Packs a matrix given element by element, `values(output, input)`, in `f32`.
    pub(crate) fn from_f32(
        values: impl Fn(usize, usize) -> f32,
        outputs: usize,
        inputs: usize,
    ) -> Self {
        let mut elements = vec![0.0; padded(outputs, inputs)];
        let panels = elements.chunks_exact_mut(panel_len(inputs).max(1));
        for (panel, to) in panels.enumerate() {
            for output in panel * LANES..outputs.min((panel + 1) * LANES) {
                let to = to[output % LANES..].iter_mut().step_by(LANES);
                to.zip(0..inputs)
                    .for_each(|(to, k)| *to = values(output, k));
            }
        }
        Self {
            outputs,
            inputs,
            elements: Elements::F32(elements),
        }
    }

    /// Returns the bytes that a matrix takes.
    pub(crate) fn bytes_for(format: Format, outputs: usize, inputs: usize) -> usize {
        match format.as_dtype() {
            Some(dtype) => padded(outputs, inputs) * dtype.size_bytes(),
            None => {
                let layout = Layout::of(format).expect("a quantised format");
                outputs.div_ceil(LANES) * layout.panel_bytes(inputs / BLOCK_INPUTS)
            }
        }
    }

    /// Copies one row of the matrix, widened: the embedding of a token.
    pub(crate) fn row(&self, output: usize, to: &mut [f32]) {
        assert!(output < self.outputs, "row {output} of {}", self.outputs);
        let start = self.position(output);
        let to = &mut to[..self.inputs];
        match &self.elements {
            Elements::F32(from) => {
                to.iter_mut()
                    .enumerate()
                    .for_each(|(k, to)| *to = from[start + k * LANES]);
            }
            Elements::Bf16(from) => {
                to.iter_mut()
                    .enumerate()
                    .for_each(|(k, to)| *to = widen_bf16(from[start + k * LANES]));
            }
            Elements::F16(from) => {
                to.iter_mut()
                    .enumerate()
                    .for_each(|(k, to)| *to = widen_f16(from[start + k * LANES]));
            }
            Elements::Quantised(from) => from.row(output, to),
        }
    }

    fn position(&self, output: usize) -> usize {
        output / LANES * self.panel_len() + output % LANES
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn kind(&self) -> Kind<'_> {
        match &self.elements {
            Elements::F32(_) => Kind::Plain(Dtype::F32),
            Elements::Bf16(_) => Kind::Plain(Dtype::Bf16),
            Elements::F16(_) => Kind::Plain(Dtype::F16),
            Elements::Quantised(panels) => match panels.activations() {
                Activations::F32 => Kind::Widened(panels),
                Activations::Int8 => Kind::Int8(panels),
            },
        }
    }

    /// Number of panels.
    pub(crate) fn count(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Elements of a panel.
    pub(crate) fn panel_len(&self) -> usize {
        panel_len(self.inputs)
    }

    /// Bytes held.
    pub(crate) fn size_bytes(&self) -> usize {
        match &self.elements {
            Elements::F32(data) => data.len() * 4,
            Elements::Bf16(data) | Elements::F16(data) => data.len() * 2,
            Elements::Quantised(panels) => panels.size_bytes(),
        }
    }

    /// Returns the address of input `k` of a panel of plain numbers; `len` elements from there are in bounds.
    pub(crate) fn address(&self, panel: usize, k: usize, len: usize) -> *const u8 {
        let start = panel * self.panel_len() + k * LANES;
        match &self.elements {
            Elements::F32(data) => data[start..start + len].as_ptr().cast(),
            Elements::Bf16(data) | Elements::F16(data) => data[start..start + len].as_ptr().cast(),
            Elements::Quantised(_) => {
                unreachable!("quantised panels are not read element by element")
            }
        }
    }

    /// Widens `len` elements of a panel, from input `k` on.
    pub(crate) fn widen(&self, panel: usize, k: usize, to: &mut [f32]) {
        let start = panel * self.panel_len() + k * LANES;
        match &self.elements {
            Elements::F32(data) => to.copy_from_slice(&data[start..start + to.len()]),
            Elements::Bf16(data) => widen_all_bf16(&data[start..start + to.len()], to),
            Elements::F16(data) => {
                half::slice::HalfFloatSliceExt::convert_to_f32_slice(
                    half::slice::HalfBitsSliceExt::reinterpret_cast::<half::f16>(
                        &data[start..start + to.len()],
                    ),
                    to,
                );
            }
            Elements::Quantised(panels) => panels.widen(panel, k, to),
        }
    }

    /// Writes one 16 × 16 block the other way round: `to[j · 16 + i] = W[16 p + j][16 q + i]`.
    pub(crate) fn transposed_block(&self, panel: usize, q: usize, to: &mut [f32]) {
        let to = &mut to[..BLOCK];
        let mut block = [0.0; BLOCK];
        let (dtype, from) = match self.kind() {
            Kind::Plain(dtype) => (dtype, self.address(panel, q * LANES, BLOCK)),
            Kind::Widened(panels) | Kind::Int8(panels) => {
                panels.widen(panel, q * LANES, &mut block);
                (Dtype::F32, block.as_ptr().cast())
            }
        };
        // SAFETY: both sides hold a whole block.
        unsafe { micro::transpose16(dtype, from, to.as_mut_ptr()) };
    }
}

fn panel_len(inputs: usize) -> usize {
    inputs.next_multiple_of(LANES) * LANES
}

fn padded(outputs: usize, inputs: usize) -> usize {
    outputs.div_ceil(LANES) * panel_len(inputs)
}

/// Packs plain numbers, each rounded by itself.
fn pack_plain<T: Copy + Default + Send>(
    tensor: &StoredTensor<'_>,
    round: impl Fn(f32) -> T + Sync,
) -> Vec<T> {
    let (outputs, inputs) = (tensor.shape()[0], tensor.shape()[1]);
    let mut elements = vec![T::default(); padded(outputs, inputs)];
    let panels = elements.par_chunks_exact_mut(panel_len(inputs).max(1));
    panels.enumerate().for_each_init(
        || vec![0.0; inputs],
        |row, (panel, to)| {
            for output in panel * LANES..outputs.min((panel + 1) * LANES) {
                tensor.write_row(output, row);
                let to = to[output % LANES..].iter_mut().step_by(LANES);
                to.zip(&*row).for_each(|(to, &x)| *to = round(x));
            }
        },
    );
    elements
}

fn pack_quantised(
    tensor: &StoredTensor<'_>,
    format: Format,
    activations: Activations,
) -> QuantisedPanels {
    let (outputs, inputs) = (tensor.shape()[0], tensor.shape()[1]);
    let layout = Layout::of(format).expect("a quantised format");
    let mut quantised = QuantisedPanels::zeros(layout, outputs, inputs, activations);
    let panel_bytes = quantised.panel_bytes();
    let panels = quantised.panels_mut().par_chunks_exact_mut(panel_bytes);
    panels.enumerate().for_each_init(
        || vec![0.0; inputs],
        |row, (panel, to)| {
            for output in panel * LANES..outputs.min((panel + 1) * LANES) {
                if tensor.format() == format {
                    layout.write_row(format, tensor.row(output), output % LANES, to);
                } else {
                    tensor.write_row(output, row);
                    let blocks = quantise(row, format).expect("a format that can be written");
                    layout.write_row(format, &blocks, output % LANES, to);
                }
            }
        },
    );
    quantised
}

isa::vectorised! {
    fn widen_all_bf16(from: &[u16], to: &mut [f32]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to = widen_bf16(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::TensorView;

    #[test]
    fn rows_and_transposed_blocks_read_back_what_was_packed() {
        let (outputs, inputs) = (21, 35);
        let value = |o: usize, k: usize| (o * 64 + k) as f32;
        let shape = vec![outputs, inputs];
        let values: Vec<f32> = (0..outputs * inputs)
            .map(|i| value(i / inputs, i % inputs))
            .collect();
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let tensor = TensorView::from_f32("w", dtype, shape.clone(), &values).unwrap();
            let rounded = tensor.to_f32();
            let panels = Panels::pack(&tensor.into(), dtype.into(), Activations::F32);
            let mut row = vec![0.0; inputs];
            for o in 0..outputs {
                panels.row(o, &mut row);
                assert_eq!(
                    row,
                    rounded[o * inputs..(o + 1) * inputs],
                    "{dtype:?} row {o}"
                );
            }
            let mut block = [0.0; BLOCK];
            panels.transposed_block(1, 2, &mut block);
            for j in 0..LANES {
                for i in 0..LANES {
                    let (o, k) = (LANES + j, 2 * LANES + i);
                    let expected = if o < outputs && k < inputs {
                        rounded[o * inputs + k]
                    } else {
                        0.0
                    };
                    assert_eq!(block[j * LANES + i], expected, "{dtype:?} W[{o}][{k}]");
                }
            }
        }
    }
}
