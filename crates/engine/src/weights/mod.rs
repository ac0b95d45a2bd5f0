//! Where a model's frozen weights come from.
//!
//! A [`WeightSource`] hands out tensors one at a time under their Hugging Face names
//! (`model.layers.0.self_attn.q_proj.weight`), so that the model packs each into its own layout and
//! lets go of the original. [`tensor_shapes`] lists the tensors that a configuration calls for.

mod experts;
pub(crate) mod format;
mod gguf;
mod huggingface;
mod mixture;
mod mxfp4;
pub(crate) mod order;
mod quantise;
mod random;
pub(crate) mod safetensors;
mod stored;
mod tensor;

pub(crate) use format::Format;
pub use format::Format as GgufFormat;
pub use gguf::{GgufFile, interleave};
pub use huggingface::{HuggingFaceFolder, save_folder, save_shards};
pub use mixture::Quantisation;
pub use quantise::{quantise, unfit};
pub use random::RandomWeights;
pub use safetensors::Outline;
pub use stored::StoredTensor;
pub use tensor::{Dtype, TensorView};

use crate::model::tensor_table::TensorTable;
use crate::{Error, ModelConfig};

/// A set of named tensors together with the shape of the model that they make up.
pub trait WeightSource: Send + Sync {
    /// Returns the shape of the model.
    fn config(&self) -> &ModelConfig;

    /// Returns one tensor by its Hugging Face name.
    ///
    /// # Errors
    ///
    /// When there is no such tensor, or it cannot be read.
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error>;

    /// Returns the precision of the stored matrices; `f32` if they are quantised, which holds their values
    /// exactly.
    fn precision(&self) -> Dtype;

    /// Returns one tensor in the format that it is stored in, which the packed model keeps.
    ///
    /// # Errors
    ///
    /// As for [`tensor`](Self::tensor).
    fn stored(&self, name: &str) -> Result<StoredTensor<'_>, Error> {
        Ok(self.tensor(name)?.into())
    }

    /// Returns the format that a tensor is stored in, without reading it.
    ///
    /// # Errors
    ///
    /// When there is no such tensor.
    fn format(&self, name: &str) -> Result<GgufFormat, Error> {
        let _ = name;
        Ok(self.precision().into())
    }

    /// Says that a tensor will not be read again soon, so that a mapped file need not stay in memory.
    fn release(&self, name: &str) {
        let _ = name;
    }
}

/// Lists every tensor of a model by Hugging Face name and shape, matrices as `[outputs, inputs]`.
///
/// ```
/// use tinkrs_engine::{ModelConfig, weights::tensor_shapes};
///
/// let shapes = tensor_shapes(&ModelConfig::tiny_llama());
/// assert!(shapes.contains(&("model.layers.1.self_attn.k_proj.weight".to_owned(), vec![16, 32])));
/// assert!(!shapes.iter().any(|(name, _)| name == "lm_head.weight"), "the head is tied");
/// ```
#[must_use]
pub fn tensor_shapes(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let table = TensorTable::new(config);
    let tensors = table.tensors().iter();
    tensors
        .map(|tensor| (tensor.names.hugging_face.clone(), tensor.shape.clone()))
        .collect()
}

/// A tensor of a model as GGUF files have it.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// Name in Hugging Face folders.
    pub name: String,
    /// Name in GGUF files.
    pub gguf_name: String,
    /// Sizes, matrices as `[outputs, inputs]`.
    pub shape: Vec<usize>,
    /// The number of heads whose rows are in [interleaved](interleave) order there.
    pub interleaved_heads: Option<usize>,
}

/// Lists every tensor of a model as GGUF files have it.
#[must_use]
pub fn gguf_tensors(config: &ModelConfig) -> Vec<GgufTensor> {
    let interleaves = config.architecture.family().gguf_interleaves_heads;
    let table = TensorTable::new(config);
    let tensors = table.tensors().iter();
    tensors
        .map(|tensor| GgufTensor {
            name: tensor.names.hugging_face.clone(),
            gguf_name: tensor.names.gguf.clone(),
            shape: tensor.shape.clone(),
            interleaved_heads: tensor.rotary_heads.filter(|_| interleaves),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmark_shape_has_95_million_parameters() {
        let shapes = tensor_shapes(&ModelConfig::bench_95m());
        let parameters: usize = shapes
            .iter()
            .map(|(_, s)| s.iter().product::<usize>())
            .sum();
        assert_eq!(parameters / 100_000, 951);
    }

    #[test]
    fn options_decide_which_tensors_exist() {
        let names = |config: &ModelConfig| -> Vec<String> {
            tensor_shapes(config)
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        let has = |config: &ModelConfig, part: &str| {
            names(config).iter().any(|name| name.ends_with(part))
        };
        assert!(has(&ModelConfig::tiny_llama3(), "lm_head.weight"));
        assert!(has(
            &ModelConfig::tiny_qwen2(),
            "layers.1.self_attn.v_proj.bias"
        ));
        assert!(!has(&ModelConfig::tiny_qwen2(), "o_proj.bias"));
        assert!(has(
            &ModelConfig::tiny_qwen3(),
            "layers.0.self_attn.q_norm.weight"
        ));
        assert!(!has(&ModelConfig::tiny_llama(), "q_norm.weight"));
    }
}
