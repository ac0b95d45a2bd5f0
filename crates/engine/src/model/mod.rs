//! A decoder-only language model with frozen weights, and its passes in both directions.
//!
//! A model is an embedding, decoder [layers](layer) and a [head]. A decoder layer is made of an
//! [attention] and a [feed-forward part](feed_forward), each in one file with its formula, its weights
//! by name, both passes, and what it keeps in between:
//!
//! ```text
//! h = x + attention(norm(x))        y = h + feed_forward(norm(h))
//! ```
//!
//! where each linear layer of an adapted model adds `s (x Aᵀ) Bᵀ` (see [`adapter`](crate::adapter)).
//! Rows of all sequences are packed into one matrix; only attention looks at where a sequence starts.
//!
//! Reading order: [`tensor_table`] (what there is, and its names), [`linear`] (a linear layer's
//! products), [`layer`] and its parts, [`forward`], [`head`] (from hidden states to log-probabilities
//! and back), [`backward`], and [`decode`] with its [`cache`] for sampling. The same forward code serves
//! training, prefill and decoding.

pub(crate) mod attention;
pub(crate) mod backward;
pub(crate) mod cache;
pub(crate) mod decode;
mod digest;
pub(crate) mod feed_forward;
pub(crate) mod forward;
pub(crate) mod head;
pub(crate) mod layer;
pub(crate) mod linear;
mod load;
pub(crate) mod norm;
pub(crate) mod numerics;
pub(crate) mod rows;
pub(crate) mod tensor_table;
pub(crate) mod workspace;

use std::fmt;
use std::sync::Arc;

use crate::kernels::panels::Panels;
use crate::kernels::rope;
use crate::{ModelConfig, Threads};

pub use cache::KvCache;
pub use decode::{Hidden, SequenceInput};
pub use numerics::{Numerics, Precision};

use layer::Layer;
use norm::Norm;
use numerics::Plan;
use tensor_table::TensorTable;
use workspace::Pool;

/// A loaded model: weights packed for the kernels, and the threads that compute with them.
///
/// It never changes. Adapters and training runs share it behind an `Arc`.
pub struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) threads: Threads,
    pub(crate) table: Arc<TensorTable>,
    pub(crate) plan: Plan,
    /// Of the weights, and of what they are packed as.
    pub(crate) digest: u64,
    pub(crate) embedding: Panels,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Norm,
    /// `None` when the head is the embedding.
    pub(crate) head: Option<Panels>,
    pub(crate) rope: rope::Table,
    /// The rotation of sliding layers, if it is another one.
    pub(crate) local_rope: Option<rope::Table>,
    pub(crate) workspaces: Pool,
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
        let linears = self.layers.iter().flat_map(Layer::linears);
        linears
            .map(|linear| &linear.weight)
            .chain([&self.embedding])
            .chain(&self.head)
            .chain(self.layers.iter().filter_map(Layer::router))
            .map(Panels::size_bytes)
            .sum()
    }

    /// The matrix of the output head.
    pub(crate) fn head_panels(&self) -> &Panels {
        self.head.as_ref().unwrap_or(&self.embedding)
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
