//! Sampling: requests in, tokens and results out, one step at a time.

use std::fmt;
use std::sync::Arc;

use tinkrs_types::sampling::SampleOptions;
use tinkrs_types::{InvalidInput, SampleOutput, SamplingParams};

use crate::{Adapter, Error, SamplingExtras};

/// Most samples that one request may ask for.
pub const MAX_SAMPLES: u32 = 4096;

/// Most alternatives that come with a token as it is drawn. The result has all that were asked for.
pub const MAX_ALTERNATIVES: usize = 20;

/// Samples from a model and any number of adapters.
pub trait Sampler: Send {
    /// Makes an adapter known under an id that was never used before.
    ///
    /// # Errors
    ///
    /// An adapter of another backend or model.
    fn add_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, Error>;

    /// Forgets an adapter. Requests under way keep theirs until they end.
    fn remove_adapter(&mut self, id: AdapterId);

    /// Checks and queues a request. Nothing is computed until the next step.
    ///
    /// # Errors
    ///
    /// A field that cannot be used, by its name; a prompt that does not fit the context; an adapter that
    /// is not known; or too many requests.
    fn submit(&mut self, request: SampleRequest) -> Result<Ticket, Error>;

    /// Drops a request; no event follows for it. Returns whether it was still there.
    fn cancel(&mut self, ticket: Ticket) -> bool;

    /// Returns whether no request waits or runs.
    fn is_idle(&self) -> bool;

    /// Advances all requests, by about a token for each running sample, and returns what happened.
    fn step(&mut self) -> Vec<SampleEvent>;
}

/// A request that a sampler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// An adapter that a sampler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u64);

/// How a sampler is set up.
#[derive(Clone, Default)]
pub struct SamplerOptions {
    /// How many requests may wait; one more is refused.
    pub queued_requests: usize,
    /// Memory for keys and values: of running requests, and of prompt beginnings that are shared; `None`
    /// leaves it to the backend. A request that needs more than all of it runs alone.
    pub cache_bytes: Option<u64>,
    /// Tokens that a step may guess from what was said before, shared by the samples that run; 0 guesses none. Results do
    /// not depend on it.
    pub draft_tokens: usize,
    /// Knows the bytes of tokens. Without it, requests with stop texts are refused.
    pub detokenizer: Option<Arc<dyn Detokenizer>>,
}

impl fmt::Debug for SamplerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SamplerOptions")
            .field("queued_requests", &self.queued_requests)
            .field("cache_bytes", &self.cache_bytes)
            .field("draft_tokens", &self.draft_tokens)
            .field("detokenizer", &self.detokenizer.is_some())
            .finish()
    }
}

/// Knows the bytes that tokens stand for, to find stop texts in samples.
pub trait Detokenizer: Send + Sync {
    /// Returns the bytes of a token; none for one that stands for no text.
    fn token_bytes(&self, token: u32) -> &[u8];
}

/// What to sample, from which weights, and what to report.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// An adapter that the sampler has; `None` for the base model.
    pub adapter: Option<AdapterId>,
    /// The prompt; at least one token.
    pub prompt: Vec<u32>,
    /// How many continuations to draw.
    pub num_samples: u32,
    /// How to draw tokens. `max_tokens` is required.
    pub params: SamplingParams,
    /// How to draw them otherwise; nothing by default.
    pub extras: Arc<SamplingExtras>,
    /// What to report besides the samples.
    pub options: SampleOptions,
    /// The seed to use where `params` has none; a caller that wants chance draws it at random.
    pub fallback_seed: u64,
    /// Whose request it is, as a number: memory and time are divided evenly between those who have requests,
    /// so that many requests of one do not delay the one of another. It changes no result.
    pub share: u64,
}

impl SampleRequest {
    /// Asks for one sample of the base model, of at most `max_tokens` tokens, with seed 0.
    #[must_use]
    pub fn new(prompt: impl Into<Vec<u32>>, max_tokens: u32) -> Self {
        Self {
            adapter: None,
            prompt: prompt.into(),
            num_samples: 1,
            params: SamplingParams::new(max_tokens),
            extras: Arc::default(),
            options: SampleOptions::default(),
            fallback_seed: 0,
            share: 0,
        }
    }

    /// Checks what holds for every model, and returns `max_tokens`.
    ///
    /// # Errors
    ///
    /// As [`check_limits`].
    pub fn check(&self) -> Result<usize, InvalidInput> {
        check_limits(self.num_samples, &self.params, &self.options)
    }
}

/// Checks the parts of a request for samples that have the same limits for every model, and returns
/// `max_tokens`.
///
/// # Errors
///
/// Names the first field that cannot be used, and what it may hold.
pub fn check_limits(
    num_samples: u32,
    params: &SamplingParams,
    options: &SampleOptions,
) -> Result<usize, InvalidInput> {
    if !(1..=MAX_SAMPLES).contains(&num_samples) {
        let allowed = format!("1 to {MAX_SAMPLES}");
        return Err(InvalidInput::new("num_samples", num_samples, allowed));
    }
    params.check()?;
    options.check()?;
    match params.max_tokens {
        Some(max_tokens) => Ok(max_tokens as usize),
        None => Err(InvalidInput::new(
            "sampling_params.max_tokens",
            "nothing",
            "1 or more: there is no default",
        )),
    }
}

/// Something that happened in a step.
#[derive(Debug)]
pub enum SampleEvent {
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
        /// The likeliest tokens at its place and their log-probabilities, likeliest first: as many as
        /// `topk_sample_logprobs` asks for, at most [`MAX_ALTERNATIVES`].
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
