//! Packing a model's weights, once, at load.

use rayon::prelude::*;

use super::linear::Linear;
use super::workspace::Pool;
use super::{Layer, Model, Site};
use crate::kernels::panels::Panels;
use crate::kernels::rope;
use crate::weights::{Dtype, WeightSource};
use crate::{Error, ModelConfig, Threads};

/// How the packed weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// As the source stores them. This is the default.
    #[default]
    Stored,
    /// In single precision, whatever the source holds.
    F32,
}

impl Model {
    /// Reads and packs all weights.
    ///
    /// # Errors
    ///
    /// When a tensor is missing, has the wrong shape (the error names both), or cannot be read.
    pub fn load(
        source: &dyn WeightSource,
        precision: Precision,
        threads: &Threads,
    ) -> Result<Self, Error> {
        source.config().validate()?;
        let dtype = match precision {
            Precision::Stored => source.precision(),
            Precision::F32 => Dtype::F32,
        };
        threads.run(|| {
            Reader {
                source,
                config: source.config(),
                dtype,
            }
            .model(threads)
        })
    }
}

struct Reader<'a> {
    source: &'a dyn WeightSource,
    config: &'a ModelConfig,
    dtype: Dtype,
}

impl Reader<'_> {
    fn model(&self, threads: &Threads) -> Result<Model, Error> {
        let config = self.config;
        let (vocab, hidden) = (config.vocab, config.hidden);
        let layers = (0..config.layers)
            .into_par_iter()
            .map(|index| self.layer(index))
            .collect::<Result<_, _>>()?;
        let head = match config.tied_head {
            true => None,
            false => Some(self.matrix("lm_head.weight", vocab, hidden)?),
        };
        Ok(Model {
            config: config.clone(),
            threads: threads.clone(),
            embedding: self.matrix("model.embed_tokens.weight", vocab, hidden)?,
            layers,
            final_norm: self.vector("model.norm.weight", hidden)?,
            head,
            rope: rope::Table::new(&config.rope, config.head_dim),
            workspaces: Pool::default(),
        })
    }

    fn layer(&self, index: usize) -> Result<Layer, Error> {
        let config = self.config;
        let prefix = format!("model.layers.{index}");
        let vector = |name: &str, len| self.vector(&format!("{prefix}.{name}.weight"), len);
        let linear = |site: Site| {
            let name = format!("{prefix}.{}", site.name());
            let (outputs, inputs) = site.shape(config);
            let biased = match site {
                Site::Query | Site::Key | Site::Value => config.qkv_bias,
                Site::Output => config.attention_output_bias,
                Site::Gate | Site::Up | Site::Down => false,
            };
            let bias = biased
                .then(|| self.vector(&format!("{name}.bias"), outputs))
                .transpose()?;
            Ok::<_, Error>(Linear {
                weight: self.matrix(&format!("{name}.weight"), outputs, inputs)?,
                bias,
            })
        };
        let [q, k, v, o, gate, up, down] = Site::ALL.map(linear);
        let head_norm = |name| vector(name, config.head_dim);
        Ok(Layer {
            attention_norm: vector("input_layernorm", config.hidden)?,
            mlp_norm: vector("post_attention_layernorm", config.hidden)?,
            qk_norms: match config.qk_norm {
                true => Some([
                    head_norm("self_attn.q_norm")?,
                    head_norm("self_attn.k_norm")?,
                ]),
                false => None,
            },
            linears: [q?, k?, v?, o?, gate?, up?, down?],
        })
    }

    fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<Panels, Error> {
        let tensor = self.source.tensor(name)?.expect_shape(&[outputs, inputs])?;
        Ok(Panels::from_tensor(&tensor, self.dtype))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        Ok(self.source.tensor(name)?.expect_shape(&[len])?.to_f32())
    }
}
