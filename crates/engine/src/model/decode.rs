//! One step of sampling: new tokens of several sequences at once, on top of their caches.
//!
//! A step takes any mixture of prompts to be read and single new tokens, with or without adapters. Each
//! row's result has the same bits whatever else is in the step, and the same bits as a training pass
//! over the whole sequence.
//!
//! ```
//! use tinkrs_engine::weights::{Dtype, RandomWeights};
//! use tinkrs_engine::{SequenceInput, KvCache, Model, ModelConfig, Precision, Threads};
//!
//! let source = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::Bf16)?;
//! let model = Model::load(&source, Precision::Stored, &Threads::new(2)?)?;
//! let mut cache = KvCache::new(&model);
//! let hidden = model.step(&mut [SequenceInput::new(&mut cache, &[1, 5, 9])])?;
//! let logits = model.logits(&hidden, 0..1);
//! assert_eq!((logits.len(), cache.len()), (96, 3));
//! # Ok::<(), tinkrs_engine::Error>(())
//! ```

use std::ops::Range;

use rayon::prelude::*;

use super::Model;
use super::attention::Past;
use super::cache::KvCache;
use super::linear::{add_adapters, add_pairs};
use super::rows::Rows;
use crate::Error;
use crate::adapter::Adapter;
use crate::kernels::gemm::{Start, project};
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::softmax;

/// New tokens of one sequence.
#[derive(Debug)]
pub struct SequenceInput<'a> {
    /// The sequence so far; it grows by the new tokens.
    pub cache: &'a mut KvCache,
    /// The new tokens: at least one.
    pub tokens: &'a [u32],
    /// The adapter, if any.
    pub adapter: Option<&'a Adapter>,
    /// Which of the new tokens' hidden states are wanted.
    pub wanted: Range<usize>,
}

impl<'a> SequenceInput<'a> {
    /// Feeds tokens to the model itself, and wants the hidden state of the last.
    #[must_use]
    pub fn new(cache: &'a mut KvCache, tokens: &'a [u32]) -> Self {
        Self {
            cache,
            tokens,
            adapter: None,
            wanted: tokens.len().saturating_sub(1)..tokens.len(),
        }
    }
}

/// Final hidden states of the wanted rows, sequence by sequence.
#[derive(Debug)]
pub struct Hidden<'a> {
    values: Vec<f32>, // rows × hidden, normalised
    width: usize,
    rows: Rows<'a>,
}

impl Hidden<'_> {
    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether no row was wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Model {
    /// Reads new tokens into their caches and returns the hidden states that were asked for.
    ///
    /// # Errors
    ///
    /// An input without tokens, a token outside the vocabulary, a sequence longer than the context, or a
    /// cache or adapter of another model. The error names the input's index, and no cache has changed.
    pub fn step<'a>(&self, inputs: &mut [SequenceInput<'a>]) -> Result<Hidden<'a>, Error> {
        for (index, input) in inputs.iter().enumerate() {
            self.check(index, input)?;
        }
        let (mut rows, mut wanted) = (Rows::default(), Rows::default());
        let mut tokens = Vec::new();
        for input in inputs.iter() {
            rows.push(input.tokens.len(), input.cache.len(), input.adapter);
            wanted.push(input.wanted.len(), 0, input.adapter);
            tokens.extend_from_slice(input.tokens);
        }
        for input in inputs.iter_mut() {
            input.cache.grow(input.tokens.len());
        }
        let width = self.config.hidden;
        let mut values = vec![0.0; wanted.len() * width];
        self.workspaces.with(|workspace| {
            self.threads.run(|| {
                let mut caches: Vec<&mut KvCache> =
                    inputs.iter_mut().map(|input| &mut *input.cache).collect();
                self.forward_once(&tokens, &rows, workspace, Past::Caches(&mut caches));
            });
            let mut to = values.chunks_exact_mut(width);
            for (span, input) in rows.spans().iter().zip(inputs.iter()) {
                for index in input.wanted.clone() {
                    let x = &workspace.last[(span.rows.start + index) * width..][..width];
                    let to = to.next().expect("as many rows as are wanted");
                    self.final_norm.forward_row(x, to);
                }
            }
        });
        Ok(Hidden {
            values,
            width,
            rows: wanted,
        })
    }

    /// Computes the scores of all tokens for some of the hidden states, row by row.
    ///
    /// # Panics
    ///
    /// When the range exceeds the number of rows.
    #[must_use]
    pub fn logits(&self, hidden: &Hidden<'_>, range: Range<usize>) -> Vec<f32> {
        let (width, vocab) = (hidden.width, self.config.vocab);
        let values = &hidden.values[range.start * width..range.end * width];
        let mut logits = vec![0.0; range.len() * vocab];
        self.threads.run(|| {
            let x = Mat::new(values, range.len(), width);
            project(
                x,
                &[self.head_panels()],
                MatMut::new(&mut logits, range.len(), vocab),
                Start::Zero,
            );
            let wanted: Vec<usize> = range.clone().collect();
            let rows = hidden.rows.select(&wanted);
            let (site, u) = (self.table.head_site(), &mut Vec::new());
            add_adapters(&rows, &mut logits, vocab, u, |rows, adapter, y, u| {
                if let Some(pair) = adapter.pair(site) {
                    let part = x.part(rows.start, rows.len());
                    add_pairs(part, &[(0, pair)], y, vocab, u);
                }
            });
            if let Some(cap) = self.final_softcap() {
                let rows = logits.par_chunks_exact_mut(vocab);
                rows.for_each(|row| softmax::cap(row, 1.0, cap));
            }
        });
        logits
    }

    fn check(&self, index: usize, input: &SequenceInput<'_>) -> Result<(), Error> {
        self.check_tokens(index, input.tokens, input.cache.len())?;
        if input.wanted.end > input.tokens.len() || input.wanted.start > input.wanted.end {
            return Err(Error::invalid(
                "wanted",
                format!("{:?} of {} tokens", input.wanted, input.tokens.len()),
            ));
        }
        if !input.cache.fits(self) {
            return Err(Error::invalid(
                "cache",
                format!("the cache of input {index} belongs to another model"),
            ));
        }
        match input.adapter {
            Some(adapter) if !adapter.fits(self) => {
                let reason = format!("the adapter of input {index} belongs to another model");
                Err(Error::invalid("adapter", reason))
            }
            _ => Ok(()),
        }
    }

    /// Refuses empty and overlong sequences and unknown tokens.
    pub(crate) fn check_tokens(
        &self,
        datum: usize,
        tokens: &[u32],
        before: usize,
    ) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(Error::EmptySequence { datum });
        }
        let (got, limit, vocab) = (
            before + tokens.len(),
            self.config.max_context,
            self.config.vocab,
        );
        if got > limit {
            return Err(Error::ContextOverflow { datum, got, limit });
        }
        match tokens.iter().position(|&token| token as usize >= vocab) {
            Some(position) => Err(Error::Token {
                datum,
                position,
                token: i64::from(tokens[position]),
                vocab,
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::initial_a;
    use crate::model::tensor_table::Site;
    use crate::weights::{Dtype, RandomWeights};
    use crate::{ModelConfig, Precision, Threads};

    fn model(config: ModelConfig, threads: usize) -> Model {
        let source = RandomWeights::new(config, 7, Dtype::Bf16).unwrap();
        Model::load(&source, Precision::Stored, &Threads::new(threads).unwrap()).unwrap()
    }

    fn tokens(len: usize, seed: usize) -> Vec<u32> {
        (0..len)
            .map(|i| ((i * 37 + seed * 11 + i * i) % 96) as u32)
            .collect()
    }

    fn adapter(model: &Model, seed: u64) -> Adapter {
        let rank = 4;
        let part = |site: &Site| {
            (
                initial_a(seed, &site.name, rank, site.inputs),
                initial_a(seed + 1, &site.name, rank, site.outputs),
            )
        };
        let parts: Vec<_> = model.table.sites().iter().map(part).collect();
        Adapter::pack(&model.table, rank, 32.0, |site| {
            let (a, b) = &parts[site.0];
            Some((a.as_slice(), b.as_slice()))
        })
    }

    #[test]
    fn decoding_token_by_token_in_a_mixed_batch_gives_the_bits_of_one_pass() {
        for config in ModelConfig::tiny_models() {
            let model = model(config, 2);
            let adapters = [adapter(&model, 1), adapter(&model, 5)];
            let texts = [tokens(70, 1), tokens(9, 2), tokens(33, 3)];
            let of = |index: usize| [None, Some(&adapters[0]), Some(&adapters[1])][index];
            let whole: Vec<Vec<f32>> = (0..3)
                .map(|index| {
                    let mut cache = KvCache::new(&model);
                    let wanted = 0..texts[index].len();
                    let input = SequenceInput {
                        cache: &mut cache,
                        tokens: &texts[index],
                        adapter: of(index),
                        wanted,
                    };
                    let hidden = model.step(&mut [input]).unwrap();
                    model.logits(&hidden, 0..hidden.len())
                })
                .collect();
            let mut caches = [0; 3].map(|_| KvCache::new(&model));
            let vocab = model.config.vocab;
            for position in 0..70 {
                let mut inputs = Vec::new();
                for (index, cache) in caches.iter_mut().enumerate() {
                    // The third text arrives in pieces of eleven tokens.
                    let piece = if index == 2 {
                        (position * 11)..(position * 11 + 11)
                    } else {
                        position..position + 1
                    };
                    if let Some(tokens) = texts[index].get(piece) {
                        inputs.push((
                            index,
                            SequenceInput {
                                adapter: of(index),
                                ..SequenceInput::new(cache, tokens)
                            },
                        ));
                    }
                }
                let (indices, mut inputs): (Vec<usize>, Vec<SequenceInput<'_>>) =
                    inputs.into_iter().unzip();
                let hidden = model.step(&mut inputs).unwrap();
                let logits = model.logits(&hidden, 0..hidden.len());
                drop(inputs);
                for (row, index) in indices.into_iter().enumerate() {
                    let at = caches[index].len() - 1;
                    let expected = &whole[index][at * vocab..(at + 1) * vocab];
                    assert_eq!(
                        &logits[row * vocab..(row + 1) * vocab],
                        expected,
                        "text {index} at {at}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_clone_of_a_cache_goes_its_own_way() {
        let model = model(ModelConfig::tiny_qwen3(), 1);
        let prompt = tokens(100, 4);
        let mut cache = KvCache::new(&model);
        model
            .step(&mut [SequenceInput::new(&mut cache, &prompt)])
            .unwrap();
        let next = |mut cache: KvCache, tokens: &[u32]| {
            let hidden = model
                .step(&mut [SequenceInput::new(&mut cache, tokens)])
                .unwrap();
            model.logits(&hidden, 0..1)
        };
        let first = next(cache.clone(), &[5, 6]);
        let second = next(cache.clone(), &[7]);
        assert_ne!(first, second);
        assert_eq!(
            first,
            next(cache.clone(), &[5, 6]),
            "the other branch left the prompt alone"
        );
        let mut shorter = cache.clone();
        shorter.truncate(70);
        assert_eq!(second, next(shorter, &[&prompt[70..], &[7]].concat()));
    }

    #[test]
    fn bad_feeds_are_refused_and_leave_the_caches_alone() {
        let model = model(ModelConfig::tiny_llama(), 1);
        let mut good = KvCache::new(&model);
        let mut bad = KvCache::new(&model);
        let cases: [(&[u32], &str); 3] = [
            (&[], "datum 1 has no tokens"),
            (
                &[3, 96],
                "datum 1, position 1: token 96 is outside the vocabulary of 96",
            ),
            (
                &[1; 129],
                "datum 1 needs 129 tokens, but the model's context holds at most 128",
            ),
        ];
        for (tokens, message) in cases {
            let error = model
                .step(&mut [
                    SequenceInput::new(&mut good, &[1]),
                    SequenceInput::new(&mut bad, tokens),
                ])
                .unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert_eq!((good.len(), bad.len()), (0, 0));
    }
}
