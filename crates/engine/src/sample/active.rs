//! A request from its submission to its result.

use std::ops::Range;
use std::sync::Arc;

use tinkrs_types::SampleOutput;
use tinkrs_types::sampling::SampledSequence;

use super::batch::{Drawing, Input, Prompt, SamplingBatch, Target};
use super::distribution::DistributionScratch;
use super::generation::Generation;
use super::prefix_cache::{BLOCK_TOKENS, PrefixCache, WeightsId};
use super::request::Checked;
use super::rng::SampleRng;
use super::scheduler::Ticket;
use super::stop::Detokenizer;
use crate::{Adapter, Error, KvCache};

/// What a request holds while it waits and runs.
///
/// Caches, scores and samples move into a [`SamplingBatch`] for the time of a step, and back.
#[derive(Debug)]
pub(crate) struct Active {
    request: Checked,
    adapter: Option<Arc<Adapter>>,
    /// Keys and values of the prompt; moved to the last sample when that starts.
    prompt_cache: Option<KvCache>,
    /// Logits after the last token of the prompt, once they are known and until the last sample starts.
    last_logits: Vec<f32>,
    hit_tokens: usize,
    samples: Vec<Sample>,
}

#[derive(Debug)]
enum Sample {
    NotStarted,
    Running(Box<Generation>, KvCache),
    InBatch,
    Ended(SampledSequence),
}

impl Active {
    pub(crate) fn new(request: Checked, adapter: Option<Arc<Adapter>>, empty: KvCache) -> Self {
        Self {
            samples: (0..request.samples).map(|_| Sample::NotStarted).collect(),
            request,
            adapter,
            prompt_cache: Some(empty),
            last_logits: Vec::new(),
            hit_tokens: 0,
        }
    }

    pub(crate) fn weights(&self) -> WeightsId {
        self.request.weights
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let samples = self.samples.iter().filter_map(|sample| match sample {
            Sample::Running(_, cache) => Some(cache),
            _ => None,
        });
        samples
            .chain(&self.prompt_cache)
            .map(KvCache::size_bytes)
            .sum()
    }

    /// Takes over what other requests have computed, and returns how many tokens that is.
    ///
    /// Rows that are to be scored have to be computed, and the last row always.
    pub(crate) fn reuse_prefix(&mut self, prefixes: &mut PrefixCache) -> usize {
        let last = self.request.prompt.len() - 1;
        let usable = self
            .request
            .scoring
            .first_row()
            .map_or(last, |first| first.min(last));
        let blocks = prefixes.lookup(self.request.weights, &self.request.prompt[..usable]);
        self.hit_tokens = blocks.len() * BLOCK_TOKENS;
        if let Some(cache) = &mut self.prompt_cache {
            cache.adopt(blocks);
        }
        self.hit_tokens
    }

    /// Starts a sample with its first token.
    pub(crate) fn start(
        &mut self,
        sample: usize,
        detokenizer: Option<&dyn Detokenizer>,
        scratch: &mut DistributionScratch,
    ) -> Result<(), Error> {
        let mut generation = Box::new(Generation::new(&self.request, sample));
        generation.take_logits(&self.last_logits, detokenizer, scratch)?;
        let is_last = sample + 1 == self.samples.len();
        let cache = if is_last {
            self.last_logits = Vec::new();
            self.prompt_cache.take()
        } else {
            self.prompt_cache.clone()
        };
        let cache = cache.expect("the prompt is held until its last sample starts");
        self.samples[sample] = Sample::Running(generation, cache);
        Ok(())
    }

    /// Adds a running sample's newest token to a batch, and at most `draft` tokens that may follow it.
    pub(crate) fn feed_sample(
        &mut self,
        ticket: Ticket,
        sample: usize,
        draft: usize,
        batch: &mut SamplingBatch,
    ) {
        let running = std::mem::replace(&mut self.samples[sample], Sample::InBatch);
        let Sample::Running(generation, cache) = running else {
            self.samples[sample] = running;
            return;
        };
        let guesses = generation.guess(&self.request.prompt, draft);
        let newest = generation.tokens().last().copied();
        let tokens: Vec<u32> = newest.into_iter().chain(guesses.iter().copied()).collect();
        let input = Input {
            cache,
            wanted: 0..tokens.len(),
            tokens,
            adapter: self.adapter.clone(),
        };
        let target = Target::Sample(Box::new(Drawing {
            sample,
            generation,
            guesses,
            drawn: 0,
        }));
        batch.push(ticket, self.request.weights, input, target);
    }

    /// Adds a piece of the prompt to a batch.
    pub(crate) fn feed_prompt(
        &mut self,
        ticket: Ticket,
        range: Range<usize>,
        batch: &mut SamplingBatch,
    ) {
        let Some(cache) = self.prompt_cache.take() else {
            return;
        };
        let last = self.request.prompt.len() - 1;
        let first_wanted = self.request.scoring.first_row().unwrap_or(last);
        let first_row = first_wanted.clamp(range.start, range.end);
        let input = Input {
            cache,
            tokens: self.request.prompt[range.clone()].to_vec(),
            adapter: self.adapter.clone(),
            wanted: first_row - range.start..range.len(),
        };
        let next = range.end.min(last) + 1;
        let prompt = Prompt {
            first_row,
            next_tokens: self.request.prompt[(first_row + 1).min(next)..next].to_vec(),
            scoring: std::mem::take(&mut self.request.scoring),
            rule: self.request.rule,
            rng: SampleRng::new(self.request.seed, 0),
            last_logits: Vec::new(),
        };
        batch.push(
            ticket,
            self.request.weights,
            input,
            Target::Prompt(Box::new(prompt)),
        );
    }

    pub(crate) fn put_sample_back(&mut self, drawing: Drawing, mut cache: KvCache) {
        let Drawing {
            sample,
            mut generation,
            guesses,
            drawn,
        } = drawing;
        generation.learn(guesses.len(), drawn.saturating_sub(1));
        // Guesses that were wrong; and the newest token is never read before the next step.
        cache.truncate(self.request.prompt.len() + generation.tokens().len() - 1);
        self.samples[sample] = Sample::Running(generation, cache);
    }

    pub(crate) fn put_prompt_back(&mut self, prompt: Box<Prompt>, cache: KvCache) {
        self.request.scoring = prompt.scoring;
        self.last_logits = prompt.last_logits;
        self.prompt_cache = Some(cache);
    }

    /// Offers the computed part of the prompt to other requests.
    pub(crate) fn share_prompt(&self, prefixes: &mut PrefixCache) {
        if let Some(cache) = &self.prompt_cache {
            let tokens = &self.request.prompt[..cache.len()];
            prefixes.insert(self.request.weights, tokens, |block| {
                cache.shared_block(block)
            });
        }
    }

    /// Offers the prompt and an ended sample to other requests: the next turn begins with both.
    pub(crate) fn share_sample(&self, sample: usize, prefixes: &mut PrefixCache) {
        if let Sample::Running(generation, cache) = &self.samples[sample] {
            let mut tokens = self.request.prompt.clone();
            tokens.extend_from_slice(generation.tokens());
            tokens.truncate(cache.len()); // the last token was never read
            prefixes.insert(self.request.weights, &tokens, |block| {
                cache.shared_block(block)
            });
        }
    }

    pub(crate) fn running(&mut self, sample: usize) -> Option<&mut Generation> {
        match &mut self.samples[sample] {
            Sample::Running(generation, _) => Some(generation),
            _ => None,
        }
    }

    /// Turns a sample into its result, and lets go of its cache.
    pub(crate) fn end(&mut self, sample: usize) {
        let running = std::mem::replace(&mut self.samples[sample], Sample::InBatch);
        self.samples[sample] = match running {
            Sample::Running(generation, _) => Sample::Ended(generation.finish()),
            other => other,
        };
    }

    /// Collects the results of all samples, in order.
    pub(crate) fn finish(self) -> SampleOutput {
        let mut output = SampleOutput::default();
        output.sequences = self
            .samples
            .into_iter()
            .filter_map(|sample| match sample {
                Sample::Ended(sequence) => Some(sequence),
                _ => None,
            })
            .collect();
        output.prompt_cache_hit_tokens = self.hit_tokens as u32;
        self.request.scoring.finish(&mut output);
        output
    }
}
