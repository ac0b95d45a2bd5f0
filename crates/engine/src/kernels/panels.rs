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

use super::isa;
use super::micro::{LANES, widen_bf16, widen_f16};
use crate::weights::{Dtype, TensorView};

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
}

impl Panels {
    /// Packs a tensor of shape `[outputs, inputs]`, in its own precision or in the one asked for.
    pub(crate) fn from_tensor(tensor: &TensorView<'_>, dtype: Dtype) -> Self {
        let [outputs, inputs] = *tensor.shape() else {
            unreachable!("the shape of {} was checked before packing", tensor.name())
        };
        let mut panels = Self::zeros(outputs, inputs, dtype);
        let mut row = vec![0.0; inputs];
        for output in 0..outputs {
            tensor.write_f32(output * inputs, &mut row);
            panels.set_row(output, |k| row[k]);
        }
        panels
    }

    /// Packs a matrix given element by element, `values(output, input)`, in `f32`.
    pub(crate) fn from_f32(
        values: impl Fn(usize, usize) -> f32,
        outputs: usize,
        inputs: usize,
    ) -> Self {
        let mut panels = Self::zeros(outputs, inputs, Dtype::F32);
        for output in 0..outputs {
            panels.set_row(output, |k| values(output, k));
        }
        panels
    }

    fn zeros(outputs: usize, inputs: usize, dtype: Dtype) -> Self {
        let len = outputs.next_multiple_of(LANES) * inputs.next_multiple_of(LANES);
        let elements = match dtype {
            Dtype::F32 => Elements::F32(vec![0.0; len]),
            Dtype::Bf16 => Elements::Bf16(vec![0; len]),
            Dtype::F16 => Elements::F16(vec![0; len]),
        };
        Self {
            outputs,
            inputs,
            elements,
        }
    }

    fn set_row(&mut self, output: usize, value: impl Fn(usize) -> f32) {
        let (start, inputs) = (self.position(output), self.inputs);
        match &mut self.elements {
            Elements::F32(to) => (0..inputs).for_each(|k| to[start + k * LANES] = value(k)),
            Elements::Bf16(to) => {
                (0..inputs)
                    .for_each(|k| to[start + k * LANES] = half::bf16::from_f32(value(k)).to_bits());
            }
            Elements::F16(to) => {
                (0..inputs)
                    .for_each(|k| to[start + k * LANES] = half::f16::from_f32(value(k)).to_bits());
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

    pub(crate) fn dtype(&self) -> Dtype {
        match self.elements {
            Elements::F32(_) => Dtype::F32,
            Elements::Bf16(_) => Dtype::Bf16,
            Elements::F16(_) => Dtype::F16,
        }
    }

    /// Number of panels.
    pub(crate) fn count(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Elements of a panel.
    pub(crate) fn panel_len(&self) -> usize {
        self.inputs.next_multiple_of(LANES) * LANES
    }

    /// Bytes held.
    pub(crate) fn size_bytes(&self) -> usize {
        self.count() * self.panel_len() * self.dtype().size_bytes()
    }

    /// Returns the address of input `k` of a panel; `len` elements from there are in bounds.
    pub(crate) fn address(&self, panel: usize, k: usize, len: usize) -> *const u8 {
        let start = panel * self.panel_len() + k * LANES;
        match &self.elements {
            Elements::F32(data) => data[start..start + len].as_ptr().cast(),
            Elements::Bf16(data) | Elements::F16(data) => data[start..start + len].as_ptr().cast(),
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
        }
    }

    /// Writes one 16 × 16 block the other way round: `to[j · 16 + i] = W[16 p + j][16 q + i]`.
    pub(crate) fn transposed_block(&self, panel: usize, q: usize, to: &mut [f32]) {
        let from = self.address(panel, q * LANES, BLOCK);
        let to = &mut to[..BLOCK];
        #[cfg(target_arch = "x86_64")]
        if isa::avx2() {
            // SAFETY: both sides hold a whole block, and the features were detected.
            return unsafe { super::micro_avx2::transpose16(self.dtype(), from, to.as_mut_ptr()) };
        }
        let _ = from;
        let mut block = [0.0; BLOCK];
        self.widen(panel, q * LANES, &mut block);
        for j in 0..LANES {
            for i in 0..LANES {
                to[j * LANES + i] = block[i * LANES + j];
            }
        }
    }
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
            let panels = Panels::from_tensor(&tensor, dtype);
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
