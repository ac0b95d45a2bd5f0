//! A model with its adapter added to its weights.
//!
//! `W' = W + (alpha / rank) · B A`, computed in f32 and rounded once. If the adapter touches a head that is
//! the embedding table, the two part: the head gets a tensor of its own and the embedding stays as it was,
//! since adding to both would change the model's input as well.

use rayon::prelude::*;
use tinkrs_engine::peft::{LoraPair, PeftAdapter};
use tinkrs_engine::weights::{
    Dtype, GgufFormat, Outline, TensorView, WeightSource, quantise, tensor_shapes, unfit,
};
use tinkrs_engine::{Error, ModelConfig};

const HEAD: &str = "lm_head";
const HEAD_WEIGHT: &str = "lm_head.weight";
const EMBEDDING_WEIGHT: &str = "model.embed_tokens.weight";
/// So many elements are merged at a time: 32 MB of them.
const PART: usize = 8 << 20;

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

    /// Finds a tensor, to be merged part by part.
    pub(crate) fn open(&self, name: &str) -> Result<MergedTensor<'a>, Error> {
        let stored = self.base.tensor(self.source_name(name))?;
        let columns = match stored.shape() {
            [_, columns] => *columns,
            _ => 1,
        };
        let update = match self.update(name) {
            Some(update) => {
                let (rank, pair) = (update.rank, update.pair);
                let outputs = stored.elements() / columns.max(1);
                let fits = pair.a.len() == rank * columns && pair.b.len() == rank * outputs;
                if stored.shape().len() != 2 || !fits {
                    return Err(mismatch(name, stored.shape(), pair, rank));
                }
                Some(update)
            }
            None => None,
        };
        Ok(MergedTensor {
            stored,
            update,
            columns,
        })
    }

    fn update(&self, name: &str) -> Option<Update<'a>> {
        let adapter = self.adapter?;
        let pair = adapter.layers.get(name.strip_suffix(".weight")?)?;
        Some(Update {
            pair,
            rank: adapter.rank,
            scale: adapter.alpha / adapter.rank as f32,
        })
    }
}

impl WeightSource for Merged<'_> {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let tensor = self.open(name)?;
        let stored = &tensor.stored;
        let dtype = self.dtype.unwrap_or(stored.dtype());
        if tensor.update.is_none() && dtype == stored.dtype() && name == stored.name() {
            return Ok(tensor.stored);
        }
        let mut bytes = Vec::with_capacity(stored.elements() * dtype.size_bytes());
        for part in tensor.parts(1) {
            bytes.extend(part.encode(name, dtype.into())?);
        }
        TensorView::new(name, dtype, stored.shape().to_vec(), bytes)
    }

    fn precision(&self) -> Dtype {
        self.dtype.unwrap_or(self.base.precision())
    }
}

/// One tensor of a model, and what the adapter adds to it.
pub(crate) struct MergedTensor<'a> {
    stored: TensorView<'a>,
    update: Option<Update<'a>>,
    columns: usize,
}

/// `scale · B A`
struct Update<'a> {
    pair: &'a LoraPair,
    rank: usize,
    scale: f32,
}

/// Some rows of a tensor, in f32.
pub(crate) struct Part {
    /// Index of the first element in its tensor.
    pub(crate) start: usize,
    pub(crate) values: Vec<f32>,
}

impl Part {
    /// Rounds the numbers to a format.
    pub(crate) fn encode(&self, tensor: &str, format: GgufFormat) -> Result<Vec<u8>, Error> {
        let wrong = |(index, value)| Error::NonFiniteTensor {
            operation: "export",
            tensor: tensor.to_owned(),
            index: self.start + index,
            value,
        };
        unfit(&self.values, format).map_or(Ok(()), |found| Err(wrong(found)))?;
        quantise(&self.values, format).ok_or_else(|| Error::InvalidOption {
            option: format!("format of `{tensor}`"),
            reason: format!("blocks of {format:?} cannot be written"),
        })
    }
}

impl MergedTensor<'_> {
    /// Returns the elements of a row: one, where there are no rows.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Merges some rows at a time, a multiple of `rows` each (but for the last), so that no tensor has to be in
    /// memory as a whole.
    pub(crate) fn parts(&self, rows: usize) -> impl Iterator<Item = Part> {
        self.parts_of(PART, rows)
    }

    /// The same, of about so many elements.
    fn parts_of(&self, at_once: usize, rows: usize) -> impl Iterator<Item = Part> {
        let least = rows * self.columns;
        let most = (at_once / least).max(1) * least;
        let elements = self.stored.elements();
        (0..elements).step_by(most).map(move |start| {
            let mut values = vec![0.0; most.min(elements - start)];
            self.stored.write_f32(start, &mut values);
            if let Some(update) = &self.update {
                update.add(&mut values, start / self.columns, self.columns);
            }
            Part { start, values }
        })
    }
}

impl Update<'_> {
    /// Adds to some rows of `W`, from the row `first` on.
    fn add(&self, weights: &mut [f32], first: usize, inputs: usize) {
        let rows = weights.par_chunks_exact_mut(inputs);
        let b = self.pair.b[first * self.rank..].par_chunks_exact(self.rank);
        rows.zip(b).for_each_init(
            || vec![0.0f32; inputs],
            |delta, (row, b)| {
                delta.fill(0.0);
                for (b, a) in b.iter().zip(self.pair.a.chunks_exact(inputs)) {
                    delta.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * a);
                }
                row.iter_mut()
                    .zip(&*delta)
                    .for_each(|(weight, delta)| *weight += self.scale * delta);
            },
        );
    }
}

fn mismatch(name: &str, shape: &[usize], pair: &LoraPair, rank: usize) -> Error {
    let rank = rank.max(1);
    Error::Shape {
        tensor: format!("the adapter of {name}"),
        expected: shape.to_vec(),
        got: vec![pair.b.len() / rank, pair.a.len() / rank],
    }
}

#[cfg(test)]
mod tests {
    use tinkrs_engine::weights::RandomWeights;

    use super::*;

    #[test]
    fn parts_are_whole_rows_and_together_the_tensor() {
        let config = ModelConfig::tiny_llama();
        let weights = RandomWeights::new(config, 3, Dtype::Bf16).unwrap();
        let merged = Merged::new(&weights, None, None);
        for (name, _) in tensor_shapes(weights.config()) {
            let whole = weights.tensor(&name).unwrap().to_f32();
            let tensor = merged.open(&name).unwrap();
            for at_once in [1, 100, PART] {
                let parts: Vec<Part> = tensor.parts_of(at_once, 2).collect();
                let (last, before) = parts.split_last().unwrap();
                for part in before {
                    assert_eq!(part.values.len() % (2 * tensor.columns), 0, "{name}");
                }
                assert_eq!(last.start + last.values.len(), whole.len());
                let joined: Vec<f32> = parts.into_iter().flat_map(|part| part.values).collect();
                assert_eq!(joined, whole, "{name}");
            }
        }
    }
}
