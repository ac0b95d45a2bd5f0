//! A decoder-only language model with frozen weights, and its passes in both directions.
//!
//! One block computes, for each row `x` (a token of some sequence):
//!
//! ```text
//! q, k, v = x̂ Wq + b, x̂ Wk + b, x̂ Wv + b         x̂ = norm(x)
//! h = x + attention(rotate(norm(q)), rotate(norm(k)), v) Wo
//! y = h + (silu(ĥ Wg) ⊙ ĥ Wu) Wd                  ĥ = norm(h)
//! ```
//!
//! where each linear layer of an adapted model adds `s (x Aᵀ) Bᵀ` (see [`adapter`](crate::adapter)).
//! Rows of all sequences are packed into one matrix; only attention looks at where a sequence starts.
//!
//! Reading order: [`linear`] (one layer's products), [`forward`] (a block), [`head`] (from hidden states
//! to log-probabilities and back), [`backward`], and [`decode`] with its [`cache`] for sampling. The
//! same forward code serves training, prefill and decoding.

pub(crate) mod backward;
pub(crate) mod cache;
pub(crate) mod decode;
pub(crate) mod forward;

pub(crate) mod head;
pub(crate) mod linear;
mod load;
pub(crate) mod rows;
pub(crate) mod workspace;

use std::fmt;

use crate::kernels::panels::Panels;
use crate::kernels::rope;
use crate::{ModelConfig, Threads};

pub use cache::KvCache;
pub use decode::{Feed, Hidden};
pub use load::Precision;

use linear::Linear;
use workspace::Pool;

/// A loaded model: weights packed for the kernels, and the threads that compute with them.
///
/// It never changes. Adapters and training runs share it behind an `Arc`.
pub struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) threads: Threads,
    pub(crate) embedding: Panels,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Vec<f32>,
    /// `None` when the head is the embedding.
    pub(crate) head: Option<Panels>,
    pub(crate) rope: rope::Table,
    pub(crate) workspaces: Pool,
}

/// The weights of one block.
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) mlp_norm: Vec<f32>,
    /// Weights of the norms of query and key heads.
    pub(crate) qk_norms: Option<[Vec<f32>; 2]>,
    /// In the order of [`Site`].
    pub(crate) linears: [Linear; 7],
}

/// The linear layers of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Site {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

impl Site {
    pub(crate) const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::Output,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];
    pub(crate) const QKV: [Self; 3] = [Self::Query, Self::Key, Self::Value];
    pub(crate) const GATE_UP: [Self; 2] = [Self::Gate, Self::Up];

    /// Name within a block, as Hugging Face spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Output => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    pub(crate) fn is_attention(self) -> bool {
        self <= Self::Output
    }

    /// Outputs and inputs.
    pub(crate) fn shape(self, config: &ModelConfig) -> (usize, usize) {
        match self {
            Self::Query => (config.query_width(), config.hidden),
            Self::Key | Self::Value => (config.kv_width(), config.hidden),
            Self::Output => (config.hidden, config.query_width()),
            Self::Gate | Self::Up => (config.ffn, config.hidden),
            Self::Down => (config.hidden, config.ffn),
        }
    }
}

impl Model {
    /// Returns the shape of the model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the threads that compute.
    #[must_use]
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Returns the size of the packed weights.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let linears = self
            .layers
            .iter()
            .flat_map(|layer| &layer.linears)
            .map(|linear| &linear.weight);
        linears
            .chain([&self.embedding])
            .chain(&self.head)
            .map(Panels::size_bytes)
            .sum()
    }

    /// The matrix of the output head.
    pub(crate) fn head_panels(&self) -> &Panels {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    pub(crate) fn eps(&self) -> f32 {
        self.config.rms_eps as f32
    }

    /// Factor of attention scores.
    pub(crate) fn attention_scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("config", &self.config)
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}
