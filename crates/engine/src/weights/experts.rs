//! Experts in Hugging Face folders that hold those of a layer in one tensor, told apart.
//!
//! gpt-oss:
//!
//! ```text
//! gate_up_proj           [experts, hidden, 2 ffn]        gates and values in turn, inputs before outputs
//! gate_up_proj_blocks    [experts, 2 ffn, hidden / 32, 16]  MXFP4, outputs before inputs,
//! gate_up_proj_scales    [experts, 2 ffn, hidden / 32]      with its exponents
//! gate_up_proj_bias      [experts, 2 ffn]
//! ```
//!
//! `down_proj` likewise, with `ffn` and `hidden` exchanged and without the doubling.
//!
//! Qwen3.5, whose folders may have a tensor for each expert, too:
//!
//! ```text
//! gate_up_proj           [experts, 2 ffn, hidden]        gates, then values
//! down_proj              [experts, hidden, ffn]
//! ```

use std::borrow::Cow;

use super::mxfp4::{self, Order};
use super::safetensors::SafetensorsFile;
use super::{Dtype, Format, StoredTensor, TensorView};
use crate::Error;
use crate::config::ModelConfig;

/// How a tensor holds all experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stacking {
    /// As gpt-oss has it: inputs before outputs, gates and values in turn.
    InputsFirst,
    /// As linear layers have it: outputs before inputs, gates before values.
    OutputsFirst,
}

/// A matrix or bias of one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpertTensor {
    /// `model.layers.3.mlp.experts.gate_up_proj`
    base: String,
    pub(super) expert: usize,
    stacking: Stacking,
    /// Which one of so many parts of the outputs.
    part: usize,
    parts: usize,
    is_bias: bool,
}

impl ExpertTensor {
    /// Reads a name such as `model.layers.3.mlp.experts.5.gate_proj.weight`.
    pub(super) fn parse(name: &str, stacking: Stacking) -> Option<Self> {
        let (layer, rest) = name.split_once(".mlp.experts.")?;
        let mut parts = rest.split('.');
        let expert = parts.next()?.parse().ok()?;
        let (joined, part, of) = match parts.next()? {
            "gate_proj" => ("gate_up_proj", 0, 2),
            "up_proj" => ("gate_up_proj", 1, 2),
            "down_proj" => ("down_proj", 0, 1),
            _ => return None,
        };
        Some(Self {
            base: format!("{layer}.mlp.experts.{joined}"),
            expert,
            stacking,
            part,
            parts: of,
            is_bias: parts.next()? == "bias",
        })
    }

    /// The tensors of the folder that it is made of, plain and in MXFP4: names with their shapes.
    pub(super) fn sources(&self, config: &ModelConfig) -> [Vec<(String, Vec<usize>)>; 2] {
        let experts = config.features.experts;
        let (count, ffn) = experts.map_or((0, 0), |experts| (experts.count, experts.ffn));
        let (outputs, inputs) = match self.parts {
            2 => (2 * ffn, config.hidden),
            _ => (config.hidden, ffn),
        };
        let name = |ending: &str| format!("{}{ending}", self.base);
        if self.is_bias {
            let bias = vec![(name("_bias"), vec![count, outputs])];
            return [bias.clone(), bias];
        }
        let blocks = vec![count, outputs, inputs / 32];
        let plain = match self.stacking {
            Stacking::InputsFirst => vec![count, inputs, outputs],
            Stacking::OutputsFirst => vec![count, outputs, inputs],
        };
        [
            vec![(name(""), plain)],
            vec![
                (name("_blocks"), [&blocks[..], &[16]].concat()),
                (name("_scales"), blocks),
            ],
        ]
    }

    /// Takes it out of a plain tensor.
    pub(super) fn plain<'a>(
        &self,
        name: &str,
        all: TensorView<'a>,
    ) -> Result<TensorView<'a>, Error> {
        match self.stacking {
            Stacking::InputsFirst => self.turned(name, &all),
            Stacking::OutputsFirst => self.cut(name, all),
        }
    }

    fn cut<'a>(&self, name: &str, all: TensorView<'a>) -> Result<TensorView<'a>, Error> {
        let (_, dtype, shape, bytes) = all.into_parts();
        let (count, outputs) = (shape[0] * self.parts, shape[1] / self.parts);
        let length = bytes.len() / count.max(1);
        let start = (self.expert * self.parts + self.part) * length;
        let bytes = match bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[start..start + length]),
            Cow::Owned(bytes) => Cow::Owned(bytes[start..start + length].to_vec()),
        };
        TensorView::new(name, dtype, vec![outputs, shape[2]], bytes)
    }

    fn turned(&self, name: &str, all: &TensorView<'_>) -> Result<TensorView<'static>, Error> {
        let sizes = &all.shape()[1..];
        let per_expert: usize = sizes.iter().product();
        let mut values = vec![0.0; per_expert];
        all.write_f32(self.expert * per_expert, &mut values);
        let outputs = sizes.last().copied().unwrap_or(1);
        let chosen = (self.part..outputs).step_by(self.parts);
        let (shape, values): (_, Vec<f32>) = if self.is_bias {
            let values: Vec<f32> = chosen.map(|output| values[output]).collect();
            (vec![values.len()], values)
        } else {
            let inputs = sizes[0];
            let turned = chosen.flat_map(|output| (0..inputs).map(move |i| i * outputs + output));
            let turned: Vec<f32> = turned.map(|place| values[place]).collect();
            (vec![turned.len() / inputs.max(1), inputs], turned)
        };
        TensorView::from_f32(name, all.dtype(), shape, &values)
    }

    /// Takes it out of blocks of MXFP4, as Q5_0.
    pub(super) fn take_mxfp4(
        &self,
        name: &str,
        blocks: (&SafetensorsFile, &str),
        scales: (&SafetensorsFile, &str),
    ) -> Result<StoredTensor<'static>, Error> {
        let (codes, shape) = blocks.0.bytes(blocks.1)?;
        let (exponents, _) = scales.0.bytes(scales.1)?;
        let (outputs, per_row) = (shape[1], shape[2]);
        let rows = (self.part..outputs).step_by(self.parts);
        let rows = rows.map(|output| (self.expert * outputs + output) * per_row);
        let places: Vec<usize> = rows.flat_map(|start| start..start + per_row).collect();
        let count = places.len() / per_row.max(1);
        let blocks = places
            .iter()
            .map(|&place| (exponents[place], &codes[place * 16..][..16]));
        let bytes = mxfp4::to_q5_0(name, blocks, Order::Neighbours)?;
        StoredTensor::new(name, Format::Q5_0, vec![count, per_row * 32], bytes)
    }
}

/// A quantised tensor as numbers.
pub(super) fn widened(tensor: &StoredTensor<'_>) -> Result<TensorView<'static>, Error> {
    let bytes = tensor.format().dequantise_to_bytes(tensor.bytes());
    TensorView::new(tensor.name(), Dtype::F32, tensor.shape().to_vec(), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_rows_of_which_tensor() {
        let parse = |name: &str| ExpertTensor::parse(name, Stacking::InputsFirst);
        let found = parse("model.layers.3.mlp.experts.5.up_proj.weight").unwrap();
        assert_eq!(found.base, "model.layers.3.mlp.experts.gate_up_proj");
        assert_eq!((found.expert, found.part, found.parts), (5, 1, 2));
        assert!(parse("model.layers.3.mlp.router.weight").is_none());
        assert!(parse("model.layers.3.mlp.shared_expert.up_proj.weight").is_none());
        assert!(parse("model.layers.3.mlp.experts.x.up_proj.weight").is_none());
    }
}
