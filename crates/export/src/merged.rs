//! A model with its adapter added to its weights.
//!
//! `W' = W + (alpha / rank) · B A`, computed in f32 and rounded once. If the adapter touches a head that is
//! the embedding table, the two part: the head gets a tensor of its own and the embedding stays as it was,
//! since adding to both would change the model's input as well.

use rayon::prelude::*;
use tinkrs_engine::peft::{LoraPair, PeftAdapter};
use tinkrs_engine::weights::{Dtype, Outline, TensorView, WeightSource, tensor_shapes};
use tinkrs_engine::{Error, ModelConfig};

const HEAD: &str = "lm_head";
const HEAD_WEIGHT: &str = "lm_head.weight";
const EMBEDDING_WEIGHT: &str = "model.embed_tokens.weight";

/// The weights of a model with an adapter, merged as they are asked for.
pub struct Merged<'a> {
    base: &'a dyn WeightSource,
    adapter: Option<&'a PeftAdapter>,
    config: ModelConfig,
    dtype: Option<Dtype>,
}

impl<'a> Merged<'a> {
    /// Joins a model and an adapter. Without a `dtype` every tensor keeps the one that it is stored in.
    #[must_use]
    pub fn new(
        base: &'a dyn WeightSource,
        adapter: Option<&'a PeftAdapter>,
        dtype: Option<Dtype>,
    ) -> Self {
        let touches_head = adapter.is_some_and(|adapter| adapter.layers.contains_key(HEAD));
        let config = base.config().clone();
        Self {
            base,
            adapter,
            config: ModelConfig {
                tied_head: config.tied_head && !touches_head,
                ..config
            },
            dtype,
        }
    }

    /// Returns whether the head has parted from the embedding.
    #[must_use]
    pub fn is_untied(&self) -> bool {
        self.base.config().tied_head && !self.config.tied_head
    }

    /// Lists the tensors and their formats.
    ///
    /// # Errors
    ///
    /// When a tensor of the model is missing.
    pub fn outlines(&self) -> Result<Vec<Outline>, Error> {
        let outline = |(name, shape): (String, Vec<usize>)| {
            let dtype = match self.dtype {
                Some(dtype) => dtype,
                None => self.base.tensor(self.source_name(&name))?.dtype(),
            };
            Ok(Outline { name, dtype, shape })
        };
        tensor_shapes(&self.config)
            .into_iter()
            .map(outline)
            .collect()
    }

    /// Returns the name under which the base model has a tensor.
    fn source_name<'n>(&self, name: &'n str) -> &'n str {
        if name == HEAD_WEIGHT && self.base.config().tied_head {
            EMBEDDING_WEIGHT
        } else {
            name
        }
    }

    fn pair(&self, name: &str) -> Option<&'a LoraPair> {
        self.adapter?.layers.get(name.strip_suffix(".weight")?)
    }
}

impl WeightSource for Merged<'_> {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let source_name = self.source_name(name);
        let stored = self.base.tensor(source_name)?;
        let dtype = self.dtype.unwrap_or(stored.dtype());
        let pair = self.pair(name);
        if pair.is_none() && dtype == stored.dtype() && name == source_name {
            return Ok(stored);
        }
        let mut values = stored.to_f32();
        if let (Some(pair), Some(adapter)) = (pair, self.adapter) {
            let [outputs, inputs] = stored.shape()[..] else {
                return Err(mismatch(name, stored.shape(), pair, adapter.rank));
            };
            let fits =
                pair.a.len() == adapter.rank * inputs && pair.b.len() == adapter.rank * outputs;
            if !fits {
                return Err(mismatch(name, stored.shape(), pair, adapter.rank));
            }
            add(&mut values, inputs, pair, adapter.rank, adapter.alpha);
        }
        let merged = TensorView::from_f32(name, dtype, stored.shape().to_vec(), &values)?;
        check_finite(&merged)?;
        Ok(merged)
    }

    fn precision(&self) -> Dtype {
        self.dtype.unwrap_or(self.base.precision())
    }
}

/// Adds `(alpha / rank) · B A` to the rows of `W`.
fn add(weights: &mut [f32], inputs: usize, pair: &LoraPair, rank: usize, alpha: f32) {
    let scale = alpha / rank as f32;
    let rows = weights.par_chunks_exact_mut(inputs);
    rows.zip(pair.b.par_chunks_exact(rank)).for_each_init(
        || vec![0.0f32; inputs],
        |delta, (row, b)| {
            delta.fill(0.0);
            for (b, a) in b.iter().zip(pair.a.chunks_exact(inputs)) {
                delta.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * a);
            }
            row.iter_mut()
                .zip(&*delta)
                .for_each(|(weight, delta)| *weight += scale * delta);
        },
    );
}

fn mismatch(name: &str, shape: &[usize], pair: &LoraPair, rank: usize) -> Error {
    let rank = rank.max(1);
    Error::Shape {
        tensor: format!("the adapter of {name}"),
        expected: shape.to_vec(),
        got: vec![pair.b.len() / rank, pair.a.len() / rank],
    }
}

/// Refuses numbers that are too large for the format.
fn check_finite(tensor: &TensorView<'_>) -> Result<(), Error> {
    let values = tensor.to_f32();
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Error::NonFiniteTensor {
            operation: "export",
            tensor: tensor.name().to_owned(),
            index,
            value: values[index],
        }),
    }
}
