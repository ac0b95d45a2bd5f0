//! Sequences drawn at temperature 1, with their log-probabilities, past any end of sequence.

use std::sync::Arc;

use anyhow::{Result, bail};
use tinkrs_engine::Model;
use tinkrs_engine::sample::{Event, SampleRequest, Sampler, SamplerSettings, WeightsId};
use tinkrs_engine::types::sampling::Stop;
use tinkrs_engine::types::{AdamParams, LossFn};

use crate::round::Done;
use crate::train::{adapter_run, datum};
use crate::work::Shape;

const PROMPT: usize = 16;
/// Tokens of the sentence that is repeated.
const REPEATED: usize = 24;

pub(crate) struct Sampling {
    sampler: Sampler,
    /// Sequences take turns with these; without any, they use the base model.
    adapters: Vec<WeightsId>,
    vocab: usize,
    weight_bytes: usize,
    shape: Shape,
}

impl Sampling {
    pub(crate) fn new(model: &Arc<Model>, adapters: usize, draft_tokens: usize) -> Result<Self> {
        let settings = SamplerSettings {
            // Each round reads its prompts again, as the other side does.
            prefix_cache_bytes: 0,
            draft_tokens,
            ..SamplerSettings::default()
        };
        let vocab = model.config().vocab;
        let mut sampler = Sampler::new(Arc::clone(model), settings);
        let mut ids = Vec::new();
        for seed in 0..adapters {
            // One step, since half of a new adapter is zero.
            let mut run = adapter_run(model, seed as i64)?;
            run.forward_backward(&[datum(vocab, PROMPT, seed)?], &LossFn::CrossEntropy)?;
            run.optim_step(AdamParams::new(1e-4))?;
            if let Some(adapter) = run.adapter() {
                ids.push(sampler.add_adapter(adapter)?);
            }
        }
        Ok(Self {
            sampler,
            adapters: ids,
            vocab,
            weight_bytes: model.size_bytes(),
            shape: Shape::of(model.config()),
        })
    }

    /// Draws so many tokens for each of a batch. A token reads all weights of a model whose head is its embedding.
    pub(crate) fn round(&mut self, batch: usize, tokens: usize) -> Result<Done> {
        Ok(Done {
            tokens: self.draw(batch, PROMPT, tokens)?,
            bytes: Some(self.weight_bytes as f64 * tokens as f64),
            operations: None,
        })
    }

    /// Reads prompts, and draws a token after each. The tokens are those of the prompts.
    pub(crate) fn prompts(&mut self, batch: usize, length: usize) -> Result<Done> {
        self.draw(batch, length, 1)?;
        Ok(Done {
            tokens: batch * length,
            bytes: None,
            operations: Some(self.shape.prompts(batch, length)),
        })
    }

    fn draw(&mut self, batch: usize, length: usize, tokens: usize) -> Result<usize> {
        for index in 0..batch {
            let prompt = (0..length).map(|i| ((i * 31 + index * 17) % self.vocab) as u32);
            let mut request = SampleRequest::new(prompt.collect::<Vec<_>>(), tokens as u32);
            request.params.stop = Some(Stop::Never);
            request.fallback_seed = index as u64;
            if !self.adapters.is_empty() {
                request.weights = self.adapters[index % self.adapters.len()];
            }
            self.sampler.submit(request)?;
        }
        self.drawn()
    }

    /// Draws the likeliest tokens after a sentence that is said four times, which a model that was trained goes on with.
    pub(crate) fn repetition(&mut self, tokens: usize) -> Result<Done> {
        let sentence = (0..REPEATED).map(|i| ((i * 131 + 7) % self.vocab) as u32);
        let prompt = sentence.collect::<Vec<_>>().repeat(4);
        let mut request = SampleRequest::new(prompt, tokens as u32);
        request.params.stop = Some(Stop::Never);
        request.params.temperature = 0.0;
        self.sampler.submit(request)?;
        Ok(Done {
            tokens: self.drawn()?,
            ..Done::default()
        })
    }

    /// Counts the tokens of all that was asked for.
    fn drawn(&mut self) -> Result<usize> {
        let mut drawn = 0;
        while !self.sampler.is_idle() {
            for event in self.sampler.step() {
                match event {
                    Event::Token { .. } => drawn += 1,
                    Event::Failed { error, .. } => bail!(error),
                    _ => {}
                }
            }
        }
        Ok(drawn)
    }
}
