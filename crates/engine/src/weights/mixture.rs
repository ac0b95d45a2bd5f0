//! Which storage format each tensor of a quantised model has, in a GGUF file or in memory.
//!
//! Norms and biases are f32, as llama.cpp expects them. `q4_k_m` is llama.cpp's mixture: four bits for most
//! matrices; six for the output (which is the embedding, where the two are one), and for the value and down
//! projections of the first eighth of the layers, the last eighth, and every third one in between.
//! A row must be whole blocks. Where it is not, the next best format with blocks of 32 is taken: Q5_0 for
//! four bits, Q8_0 for six; and f16 where not even those fit.

use super::{Dtype, Format, GgufTensor};
use crate::ModelConfig;

/// How the matrices of a model are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantisation {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Eight bits and a scale for each 32 numbers.
    Q8_0,
    /// llama.cpp's mixture of four and six bits.
    Q4KM,
}

impl From<Dtype> for Quantisation {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
            _ => Self::F32,
        }
    }
}

impl Quantisation {
    /// The names of all, as commands spell them.
    pub const NAMES: [&str; 5] = ["f32", "f16", "bf16", "q8_0", "q4_k_m"];

    /// Finds one by its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4KM];
        let place = Self::NAMES.iter().position(|known| *known == name)?;
        Some(all[place])
    }

    /// Returns the name, as commands spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the number of the mixture in `general.file_type`.
    #[must_use]
    pub fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
            Self::Bf16 => 32,
        }
    }

    /// Returns the format of a tensor, and whether it is another one than meant because rows do not fit.
    #[must_use]
    pub fn format_of(self, tensor: &GgufTensor, config: &ModelConfig) -> (Format, bool) {
        // The router's few numbers decide who computes: llama.cpp leaves them, too.
        let routes = ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"];
        if tensor.shape.len() < 2 || routes.iter().any(|end| tensor.gguf_name.ends_with(end)) {
            return (Format::F32, false);
        }
        let meant = match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::Bf16 => Format::Bf16,
            Self::Q8_0 => Format::Q8_0,
            Self::Q4KM => in_mixture(&tensor.gguf_name, config),
        };
        let row = tensor.shape.last().copied().unwrap_or(0);
        let fits = |format: &Format| row.is_multiple_of(format.block().0);
        let instead = match meant {
            Format::Q4K => Format::Q5_0,
            _ => Format::Q8_0,
        };
        let candidates = [meant, instead, Format::F16];
        let format = candidates.into_iter().find(fits);
        let format = format.unwrap_or(Format::F16);
        (format, format != meant)
    }
}

fn in_mixture(name: &str, config: &ModelConfig) -> Format {
    let is_output = name == "output.weight" || (config.tied_head && name == "token_embd.weight");
    let is_sensitive = name.ends_with("attn_v.weight")
        || name.ends_with("ffn_down.weight")
        || name.ends_with("ffn_down_exps.weight");
    let layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next());
    let layer = layer.and_then(|layer| layer.parse().ok());
    let more_bits = layer.is_some_and(|layer| has_more_bits(layer, config.layers));
    if is_output || (is_sensitive && more_bits) {
        Format::Q6K
    } else {
        Format::Q4K
    }
}

fn has_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize]) -> GgufTensor {
        GgufTensor {
            name: String::new(),
            gguf_name: name.to_owned(),
            shape: shape.to_vec(),
            interleaved_heads: None,
        }
    }

    #[test]
    fn the_mixture_is_that_of_llama_cpp() {
        let config = ModelConfig {
            layers: 16,
            tied_head: true,
            ..ModelConfig::tiny_llama()
        };
        let format = |name: &str| {
            Quantisation::Q4KM
                .format_of(&tensor(name, &[512, 512]), &config)
                .0
        };
        assert_eq!(format("token_embd.weight"), Format::Q6K);
        assert_eq!(format("blk.0.attn_q.weight"), Format::Q4K);
        let more: Vec<usize> = (0..16)
            .filter(|layer| format(&format!("blk.{layer}.ffn_down.weight")) == Format::Q6K)
            .collect();
        assert_eq!(more, [0, 1, 4, 7, 10, 13, 14, 15]);
        let untied = ModelConfig {
            tied_head: false,
            ..config.clone()
        };
        let format = |name: &str| {
            Quantisation::Q4KM
                .format_of(&tensor(name, &[512, 512]), &untied)
                .0
        };
        assert_eq!(format("token_embd.weight"), Format::Q4K);
        assert_eq!(format("output.weight"), Format::Q6K);
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_the_next_best_format() {
        let config = ModelConfig::tiny_llama();
        for (row, how, name, expected) in [
            (288, Quantisation::Q4KM, "blk.0.attn_q.weight", Format::Q5_0),
            (288, Quantisation::Q4KM, "token_embd.weight", Format::Q8_0),
            (33, Quantisation::Q4KM, "token_embd.weight", Format::F16),
            (33, Quantisation::Q8_0, "blk.0.attn_q.weight", Format::F16),
        ] {
            let found = how.format_of(&tensor(name, &[8, row]), &config);
            assert_eq!(found, (expected, true), "{name} with rows of {row}");
        }
        let norm = tensor("output_norm.weight", &[288]);
        let found = Quantisation::Q4KM.format_of(&norm, &config);
        assert_eq!(found, (Format::F32, false));
    }

    #[test]
    fn every_name_is_found() {
        for name in Quantisation::NAMES {
            assert_eq!(Quantisation::from_name(name).unwrap().name(), name);
        }
        assert_eq!(Quantisation::from_name("q3_k"), None);
    }
}
