//! In which numbers a model is held and computes: decided once, before anything is loaded.

use super::tensor_table::TensorTable;
use crate::kernels::cached::CacheFormat;
use crate::kernels::panels::Panels;
use crate::kernels::quantised::Activations;
use crate::weights::{Format, GgufTensor, Quantisation, WeightSource};
use crate::{Error, ModelConfig};

/// How the packed weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// As the source stores them. This is the default.
    #[default]
    Stored,
    /// In single precision, whatever the source holds.
    F32,
    /// In bfloat16, except matrices that the source has quantised.
    Bf16,
    /// In eight bits with a scale for each 32 numbers, except matrices that the source has quantised.
    Q8_0,
    /// In llama.cpp's mixture `q4_k_m` of four and six bits, except matrices that the source has quantised.
    Q4K,
}

impl Precision {
    /// Returns the format that a matrix of a source is packed in.
    fn format_of(
        self,
        source: &dyn WeightSource,
        tensor: &GgufTensor,
        config: &ModelConfig,
    ) -> Result<Format, Error> {
        let stored = source.format(&tensor.name)?;
        let is_plain = stored.as_dtype().is_some();
        let quantised = |how: Quantisation| match how.format_of(tensor, config).0 {
            // Rows that are no whole blocks stay as they are.
            Format::F16 => stored,
            format => format,
        };
        Ok(match self {
            Self::F32 => Format::F32,
            Self::Bf16 if is_plain => Format::Bf16,
            Self::Q8_0 if is_plain => quantised(Quantisation::Q8_0),
            Self::Q4K if is_plain => quantised(Quantisation::Q4KM),
            _ => stored,
        })
    }
}

/// In which numbers a model is held and computes, in training and sampling alike.
///
/// ```
/// use tinkrs_engine::weights::{Dtype, RandomWeights};
/// use tinkrs_engine::{Activations, Model, ModelConfig, Numerics, Precision, Threads};
///
/// let weights = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::F32)?;
/// let numerics = Numerics {
///     weights: Precision::Q8_0,
///     activations: Activations::Int8,
///     ..Numerics::default()
/// };
/// let small = Model::load(&weights, numerics, &Threads::new(1)?)?;
/// let large = Model::load(&weights, Precision::F32, &Threads::new(1)?)?;
/// assert!(small.size_bytes() < large.size_bytes());
/// # Ok::<(), tinkrs_engine::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numerics {
    /// How the weights are held.
    pub weights: Precision,
    /// How quantised matrices read their inputs.
    pub activations: Activations,
    /// How keys and values are held while sequences are sampled, and what they are rounded to everywhere.
    pub key_values: CacheFormat,
}

impl From<Precision> for Numerics {
    fn from(weights: Precision) -> Self {
        Self {
            weights,
            ..Self::default()
        }
    }
}

/// What each tensor of a model is packed as.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// In the order of the model's tensors; vectors are f32.
    formats: Vec<Format>,
    activations: Activations,
    key_values: CacheFormat,
}

impl Plan {
    /// Decides from what a source says of its tensors, without reading them.
    pub(crate) fn new(
        source: &dyn WeightSource,
        table: &TensorTable,
        numerics: Numerics,
    ) -> Result<Self, Error> {
        let config = source.config();
        let tensors = table.tensors().iter();
        let formats = tensors.map(|tensor| match tensor.shape.len() {
            2 => {
                let tensor = GgufTensor {
                    name: tensor.names.hugging_face.clone(),
                    gguf_name: tensor.names.gguf.clone(),
                    shape: tensor.shape.clone(),
                    interleaved_heads: None,
                };
                numerics.weights.format_of(source, &tensor, config)
            }
            _ => Ok(Format::F32),
        });
        Ok(Self {
            formats: formats.collect::<Result<_, _>>()?,
            activations: numerics.activations,
            key_values: numerics.key_values,
        })
    }

    pub(crate) fn format(&self, tensor: usize) -> Format {
        self.formats[tensor]
    }

    pub(crate) fn activations(&self) -> Activations {
        self.activations
    }

    pub(crate) fn key_values(&self) -> CacheFormat {
        self.key_values
    }

    /// The bytes of all packed tensors.
    pub(crate) fn weight_bytes(&self, table: &TensorTable) -> usize {
        let tensors = table.tensors().iter().zip(&self.formats);
        let sizes = tensors.map(|(tensor, &format)| match tensor.shape[..] {
            [outputs, inputs] => Panels::bytes_for(format, outputs, inputs),
            _ => tensor.shape.iter().product::<usize>() * size_of::<f32>(),
        });
        sizes.sum()
    }

    /// The format that most weights have.
    pub(crate) fn main_format(&self, table: &TensorTable) -> Format {
        let mut counts: Vec<(Format, usize)> = Vec::new();
        for (tensor, &format) in table.tensors().iter().zip(&self.formats) {
            let weights = tensor.shape.iter().product::<usize>();
            match counts.iter_mut().find(|(known, _)| *known == format) {
                Some((_, count)) => *count += weights,
                None => counts.push((format, weights)),
            }
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(Format::F32, |(format, _)| format)
    }

    /// Whether some matrix reads its inputs in eight bits.
    pub(crate) fn uses_int8(&self) -> bool {
        let mut formats = self.formats.iter();
        self.activations == Activations::Int8 && formats.any(|format| format.as_dtype().is_none())
    }
}
