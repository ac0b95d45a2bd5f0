//! The sampler: requests in, tokens and results out, one step at a time.
//!
//! [`Sampler::step`] does what the scheduler planned: it starts samples whose prompts
//! are complete, then sends one batch through the model with the next token of every running sample and
//! the next piece of every prompt, and draws or scores from the logits. The loop around it belongs to the
//! caller, who may submit and cancel between steps.
//!
//! ```
//! use std::sync::Arc;
//! use tinkrs_engine::sample::{Event, SampleRequest, Sampler, SamplerSettings};
//! use tinkrs_engine::weights::{Dtype, RandomWeights};
//! use tinkrs_engine::{Model, ModelConfig, Precision, Threads};
//!
//! let weights = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::F32)?;
//! let model = Model::load(&weights, Precision::Stored, &Threads::new(2)?)?;
//! let mut sampler = Sampler::new(Arc::new(model), SamplerSettings::default());
//! let ticket = sampler.submit(SampleRequest::new([1, 5, 9], 8))?;
//! while !sampler.is_idle() {
//!     for event in sampler.step() {
//!         if let Event::Finished { output, .. } = event {
//!             assert_eq!(output.sequences.len(), 1);
//!         }
//!     }
//! }
//! # Ok::<(), tinkrs_engine::Error>(())
//! ```
//!
//! Invariant: a sample's tokens and log-probabilities depend on its weights, prompt, parameters and seed,
//! and on nothing else: not on the batch, the prefix cache, the pieces of the prompt, or the threads.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tinkrs_types::{InvalidInput, SampleOutput};

use super::active::Active;
use super::batch::{SamplingBatch, Target};
use super::distribution::DistributionScratch;
use super::prefix_cache::{BLOCK_TOKENS, PrefixCache, WeightsId};
use super::request::{Checked, SampleRequest};
use super::scheduler::{Job, Limits, Scheduler, Ticket};
use super::stop::Detokenizer;
use crate::{Adapter, Error, KvCache, Model};

/// How much a sampler may hold, and do in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerSettings {
    /// Requests that may wait; one more is refused. Default 1024.
    pub queued_requests: usize,
    /// Samples that generate at once. Default 64. A share that has none gets one beyond that, until there are
    /// twice as many.
    pub running_samples: usize,
    /// Prompt tokens computed in one step, so that samples under way need not wait for long prompts.
    /// Default 256.
    pub prefill_tokens: usize,
    /// Memory for the keys and values of running requests; others wait. Default 2 GiB. A request that
    /// needs more than all of it runs alone.
    pub cache_bytes: usize,
    /// Memory for prompt beginnings that later requests may share; 0 shares nothing. Default 512 MiB.
    pub prefix_cache_bytes: usize,
    /// Tokens that a step guesses, shared by the samples that run: it reads them with the newest tokens, and keeps
    /// those that are then drawn. Results do not depend on it. A model with layers that cannot go back guesses none.
    /// Default 0.
    pub draft_tokens: usize,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self {
            queued_requests: 1024,
            running_samples: 64,
            prefill_tokens: 256,
            cache_bytes: 2 << 30,
            prefix_cache_bytes: 512 << 20,
            draft_tokens: 0,
        }
    }
}

/// Something that happened in a step.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A sample has a new token.
    Token {
        /// The request.
        ticket: Ticket,
        /// Index of the sample in the request.
        sample: usize,
        /// The token.
        token: u32,
        /// Its log-probability, as in the result.
        logprob: f32,
        /// The likeliest tokens at its place, if they were asked for: at most
        /// [`MAX_ALTERNATIVES`](tinkrs_backend::MAX_ALTERNATIVES).
        alternatives: Vec<(u32, f32)>,
    },
    /// A request is complete. Nothing follows for it.
    Finished {
        /// The request.
        ticket: Ticket,
        /// Its result.
        output: Box<SampleOutput>,
    },
    /// A request has failed. Nothing follows for it.
    Failed {
        /// The request.
        ticket: Ticket,
        /// Why.
        error: Error,
    },
}

/// Samples from one model and any number of adapters.
pub struct Sampler {
    model: Arc<Model>,
    detokenizer: Option<Arc<dyn Detokenizer>>,
    adapters: HashMap<WeightsId, Arc<Adapter>>,
    settings: SamplerSettings,
    scheduler: Scheduler,
    prefixes: PrefixCache,
    requests: BTreeMap<Ticket, Active>,
    scratch: DistributionScratch,
    next_ticket: u64,
    next_weights: u64,
}

impl Sampler {
    /// Makes a sampler for a model.
    #[must_use]
    pub fn new(model: Arc<Model>, settings: SamplerSettings) -> Self {
        let block_bytes = KvCache::bytes_for(&model, BLOCK_TOKENS);
        // A state at an earlier token is not held.
        let settings = match KvCache::new(&model).is_shareable() {
            true => settings,
            false => SamplerSettings {
                prefix_cache_bytes: 0,
                draft_tokens: 0,
                ..settings
            },
        };
        Self {
            model,
            detokenizer: None,
            adapters: HashMap::new(),
            settings,
            scheduler: Scheduler::new(Limits {
                queued_requests: settings.queued_requests,
                running_samples: settings.running_samples,
                cached_tokens: settings.cache_bytes / block_bytes * BLOCK_TOKENS,
                prefill_tokens: settings.prefill_tokens,
            }),
            prefixes: PrefixCache::new(settings.prefix_cache_bytes, block_bytes),
            requests: BTreeMap::new(),
            scratch: DistributionScratch::default(),
            next_ticket: 0,
            next_weights: WeightsId::BASE.0 + 1,
        }
    }

    /// Sets what finds stop texts. Without it, requests with stop texts are refused.
    #[must_use]
    pub fn with_detokenizer(mut self, detokenizer: Arc<dyn Detokenizer>) -> Self {
        self.detokenizer = Some(detokenizer);
        self
    }

    /// Makes an adapter known, as it is now: it cannot change while it is shared.
    ///
    /// # Errors
    ///
    /// An adapter of another model.
    pub fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<WeightsId, Error> {
        if !adapter.fits(&self.model) {
            return Err(Error::invalid("adapter", "it belongs to another model"));
        }
        let id = WeightsId(self.next_weights);
        self.next_weights += 1;
        self.adapters.insert(id, adapter);
        Ok(id)
    }

    /// Forgets an adapter and its part of the prefix cache. Requests under way go on.
    pub fn remove_adapter(&mut self, id: WeightsId) {
        self.adapters.remove(&id);
        self.prefixes.forget(id);
    }

    /// Checks and queues a request.
    ///
    /// # Errors
    ///
    /// A field that cannot be used, by its name; a prompt that does not fit the context; an adapter that
    /// is not known; or [`Error::QueueFull`].
    pub fn submit(&mut self, request: SampleRequest) -> Result<Ticket, Error> {
        let adapter = match self.adapters.get(&request.weights) {
            None if request.weights == WeightsId::BASE => None,
            Some(adapter) => Some(Arc::clone(adapter)),
            None => {
                let found = format!("{}", request.weights.0);
                let error =
                    InvalidInput::new("weights", found, "the base model or a known adapter");
                return Err(error.into());
            }
        };
        let share = request.share;
        let request = Checked::new(request, self.model.config(), self.detokenizer.is_some())?;
        let job = Job {
            share,
            weights: request.weights,
            prompt: request.prompt.len(),
            max_tokens: request.max_tokens,
            samples: request.samples,
        };
        let ticket = Ticket(self.next_ticket);
        if !self.scheduler.enqueue(ticket, job) {
            let limit = self.settings.queued_requests;
            return Err(Error::QueueFull { limit });
        }
        self.next_ticket += 1;
        let active = Active::new(request, adapter, KvCache::new(&self.model));
        self.requests.insert(ticket, active);
        Ok(ticket)
    }

    /// Drops a request and all it holds. Returns whether it was still there.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.scheduler.remove(ticket);
        self.requests.remove(&ticket).is_some()
    }

    /// Returns whether no request waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Returns the number of requests that wait for room.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.scheduler.queued()
    }

    /// Returns the bytes of keys and values held for requests. Blocks shared by several count for each.
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.requests.values().map(Active::size_bytes).sum()
    }

    /// Returns the bytes held by the prefix cache.
    #[must_use]
    pub fn prefix_cache_bytes(&self) -> usize {
        self.prefixes.used_bytes()
    }

    /// Computes one step: a token for every running sample, or several where guesses were right, and a piece of every
    /// prompt.
    ///
    /// Returns what happened, in the order of requests. A request that fails does not touch the others.
    pub fn step(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let (requests, prefixes) = (&mut self.requests, &mut self.prefixes);
        let plan = self.scheduler.plan(|ticket| {
            let request = requests
                .get_mut(&ticket)
                .expect("the scheduler knows only requests");
            request.reuse_prefix(prefixes)
        });
        for (ticket, sample) in plan.start {
            self.start(ticket, sample, &mut events);
        }
        let mut batch = SamplingBatch::default();
        let generating = self.scheduler.generating();
        let draft = self.settings.draft_tokens / generating.len().max(1);
        for (ticket, sample) in generating {
            let request = self.request(ticket);
            request.feed_sample(ticket, sample, draft, &mut batch);
        }
        for (ticket, range) in plan.prefill {
            // The request may have gone in this very step, with a sample that failed.
            if let Some(request) = self.requests.get_mut(&ticket) {
                request.feed_prompt(ticket, range, &mut batch);
            }
        }
        if !batch.is_empty() {
            self.compute(batch, &mut events);
        }
        events
    }

    /// Starts a sample: its first token comes from the logits that the prompt ended with.
    fn start(&mut self, ticket: Ticket, sample: usize, events: &mut Vec<Event>) {
        let Some(request) = self.requests.get_mut(&ticket) else {
            return;
        };
        match request.start(sample, self.detokenizer.as_deref(), &mut self.scratch) {
            Ok(()) => self.after_tokens(ticket, sample, events),
            Err(error) => self.fail(ticket, error, events),
        }
    }

    fn compute(&mut self, batch: SamplingBatch, events: &mut Vec<Event>) {
        for done in batch.run(&self.model, self.detokenizer.as_deref()) {
            let ticket = done.ticket;
            let Some(request) = self.requests.get_mut(&ticket) else {
                continue;
            };
            if let Err(error) = done.outcome {
                self.fail(ticket, error, events);
                continue;
            }
            match done.target {
                Target::Sample(drawing) => {
                    let sample = drawing.sample;
                    request.put_sample_back(*drawing, done.cache);
                    self.after_tokens(ticket, sample, events);
                }
                Target::Prompt(prompt) => {
                    request.put_prompt_back(prompt, done.cache);
                    let weights = request.weights();
                    if self.is_known(weights) {
                        self.requests[&ticket].share_prompt(&mut self.prefixes);
                    }
                }
            }
        }
    }

    /// Reports a sample's new tokens, and its end if the last one is among them.
    fn after_tokens(&mut self, ticket: Ticket, sample: usize, events: &mut Vec<Event>) {
        let request = self.request(ticket);
        let Some(generation) = request.running(sample) else {
            return;
        };
        let new = generation.report();
        events.extend(new.map(|(token, logprob, alternatives)| Event::Token {
            ticket,
            sample,
            token,
            logprob,
            alternatives,
        }));
        if generation.ended().is_none() {
            return;
        }
        let weights = request.weights();
        if self.is_known(weights) {
            self.requests[&ticket].share_sample(sample, &mut self.prefixes);
        }
        self.request(ticket).end(sample);
        if self.scheduler.sample_ended(ticket, sample) {
            let request = self.requests.remove(&ticket).expect("it has just ended");
            let output = Box::new(request.finish());
            events.push(Event::Finished { ticket, output });
        }
    }

    fn fail(&mut self, ticket: Ticket, error: Error, events: &mut Vec<Event>) {
        self.cancel(ticket);
        events.push(Event::Failed { ticket, error });
    }

    fn request(&mut self, ticket: Ticket) -> &mut Active {
        self.requests
            .get_mut(&ticket)
            .expect("the scheduler knows only requests")
    }

    /// Whether prefixes of these weights may still be cached.
    fn is_known(&self, weights: WeightsId) -> bool {
        weights == WeightsId::BASE || self.adapters.contains_key(&weights)
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler")
            .field("requests", &self.requests.len())
            .field("adapters", &self.adapters.len())
            .field("prefix_cache_bytes", &self.prefix_cache_bytes())
            .finish_non_exhaustive()
    }
}
