//! The sampler of the fake backend.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tinkrs_backend::{
    Adapter, AdapterId, EndOfSequence, Error, ErrorKind, LogitAdjuster, MAX_ALTERNATIVES,
    SampleEvent, SampleRequest, Sampler, SamplerOptions, Ticket,
};
use tinkrs_types::sampling::{SampledSequence, Stop, StopReason, TopkLogprobs};
use tinkrs_types::{InvalidInput, SampleOutput};

use super::{CONTEXT, END_OF_TEXT, FakeBackend, VOCABULARY, logprobs};

pub(super) struct FakeSampler {
    backend: FakeBackend,
    options: SamplerOptions,
    adapters: HashMap<AdapterId, Arc<Vec<f32>>>,
    requests: BTreeMap<Ticket, Active>,
    next_id: u64,
}

struct Active {
    weights: Arc<Vec<f32>>,
    request: SampleRequest,
    samples: Vec<Sample>,
}

struct Sample {
    adjuster: Option<LogitAdjuster>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    topk: (Vec<u32>, Vec<f32>),
    text: Vec<u8>,
    ended: Option<StopReason>,
}

impl FakeSampler {
    pub(super) fn new(backend: FakeBackend, options: SamplerOptions) -> Self {
        Self {
            backend,
            options,
            adapters: HashMap::new(),
            requests: BTreeMap::new(),
            next_id: 0,
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn check(&self, request: &SampleRequest) -> Result<(), Error> {
        let max_tokens = request.check()?;
        request.extras.check(VOCABULARY, max_tokens)?;
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(InvalidInput::new("prompt", "no tokens", "at least one token").into());
        }
        if let Some(token) = request.prompt.iter().find(|t| **t as usize >= VOCABULARY) {
            let allowed = format!("tokens below {VOCABULARY}, the size of the vocabulary");
            return Err(InvalidInput::new("prompt", format!("token {token}"), allowed).into());
        }
        if prompt + max_tokens > CONTEXT {
            return Err(Error::bad_request(format!(
                "Prompt length plus max_tokens exceeds the model's context window: \
                 {prompt} + {max_tokens} > {CONTEXT}"
            )));
        }
        let needs_text = matches!(request.params.stop, Some(Stop::Text(_) | Stop::AnyText(_)));
        if needs_text && self.options.detokenizer.is_none() {
            let allowed = "token ids: the model has no vocabulary of texts";
            return Err(InvalidInput::new("sampling_params.stop", "a text", allowed).into());
        }
        Ok(())
    }
}

impl Sampler for FakeSampler {
    fn add_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, Error> {
        let weights = adapter.downcast()?;
        let id = AdapterId(self.next_id());
        self.adapters.insert(id, weights);
        Ok(id)
    }

    fn remove_adapter(&mut self, id: AdapterId) {
        self.adapters.remove(&id);
    }

    fn submit(&mut self, request: SampleRequest) -> Result<Ticket, Error> {
        self.check(&request)?;
        let weights = match request.adapter {
            None => Arc::new(vec![0.0; VOCABULARY]),
            Some(id) => match self.adapters.get(&id) {
                Some(weights) => Arc::clone(weights),
                None => return Err(Error::bad_request("the adapter is not known")),
            },
        };
        let limit = self.options.queued_requests;
        if self.requests.len() >= limit {
            let text = format!("{limit} sampling requests are waiting already");
            return Err(Error::new(ErrorKind::Other, text));
        }
        let samples = (0..request.num_samples).map(|_| Sample::new(&request));
        let samples = samples.collect();
        let ticket = Ticket(self.next_id());
        let active = Active {
            weights,
            request,
            samples,
        };
        self.requests.insert(ticket, active);
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) -> bool {
        self.requests.remove(&ticket).is_some()
    }

    fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    fn step(&mut self) -> Vec<SampleEvent> {
        let mut events = Vec::new();
        let mut failed = Vec::new();
        for (&ticket, active) in &mut self.requests {
            self.backend.meet(&active.request.prompt);
            for index in 0..active.samples.len() {
                if active.samples[index].ended.is_none() {
                    match active.draw(index, &self.options) {
                        Ok((token, logprob)) => events.push(SampleEvent::Token {
                            ticket,
                            sample: index,
                            token,
                            logprob,
                            alternatives: active.last_alternatives(index),
                        }),
                        Err(error) => {
                            failed.push((ticket, error));
                            break;
                        }
                    }
                }
            }
        }
        for (ticket, error) in failed {
            self.requests.remove(&ticket);
            events.push(SampleEvent::Failed { ticket, error });
        }
        let is_over = |active: &Active| active.samples.iter().all(|s| s.ended.is_some());
        let over = self.requests.extract_if(.., |_, active| is_over(active));
        events.extend(over.map(|(ticket, active)| match active.output() {
            Ok(output) => SampleEvent::Finished {
                ticket,
                output: Box::new(output),
            },
            Err(error) => SampleEvent::Failed {
                ticket,
                error: error.into(),
            },
        }));
        events
    }
}

impl Sample {
    fn new(request: &SampleRequest) -> Self {
        let end_tokens = end_tokens(request);
        Self {
            adjuster: LogitAdjuster::new(&request.extras, VOCABULARY, &request.prompt, &end_tokens),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            topk: (Vec::new(), Vec::new()),
            text: Vec::new(),
            ended: None,
        }
    }
}

/// Returns the tokens that end a sample of a request.
fn end_tokens(request: &SampleRequest) -> Vec<u32> {
    let stop = request.params.stop.as_ref();
    let mut tokens = match stop {
        Some(Stop::AnyToken(tokens)) => tokens.clone(),
        _ => Vec::new(),
    };
    let ends_text = match request.extras.end_of_sequence {
        EndOfSequence::WithoutStop => stop.is_none(),
        EndOfSequence::Always => true,
        EndOfSequence::Ignored => false,
    };
    tokens.extend(ends_text.then_some(END_OF_TEXT));
    tokens.extend_from_slice(&request.extras.stop_tokens);
    tokens
}

impl Active {
    /// Draws the next token of a sample.
    fn draw(&mut self, index: usize, options: &SamplerOptions) -> Result<(u32, f32), Error> {
        let request = &self.request;
        let sample = &mut self.samples[index];
        let last = sample.tokens.last().or(request.prompt.last());
        let all = logprobs(&self.weights, last.copied().unwrap_or(0));
        let mut drawn_from = all.clone();
        if let Some(adjuster) = &mut sample.adjuster {
            adjuster.apply(&mut drawn_from)?;
            normalize(&mut drawn_from);
        }
        let largest = drawn_from.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = largest + request.extras.min_p.ln() as f32;
        if drawn_from.iter().any(|logprob| *logprob < least) {
            for logprob in drawn_from.iter_mut().filter(|logprob| **logprob < least) {
                *logprob = f32::NEG_INFINITY;
            }
            normalize(&mut drawn_from);
        }
        let token = if request.params.temperature == 0.0 {
            likeliest(&drawn_from, 1)[0]
        } else {
            let seed = request.params.seed;
            let seed = seed.map_or(request.fallback_seed, i64::cast_unsigned);
            let position = request.prompt.len() + sample.tokens.len();
            let mut rest = uniform(seed, index as u64, position as u64);
            let passed = drawn_from.iter().position(|logprob| {
                rest -= f64::from(*logprob).exp();
                rest < 0.0
            });
            passed.map_or_else(|| likeliest(&drawn_from, 1)[0], |token| token as u32)
        };
        let may_go_on = match &mut sample.adjuster {
            Some(adjuster) => adjuster.accept(token)?,
            None => true,
        };
        let logprob = all[token as usize];
        sample.tokens.push(token);
        sample.logprobs.push(logprob);
        for other in likeliest(&all, request.options.topk_sample_logprobs as usize) {
            sample.topk.0.push(other);
            sample.topk.1.push(all[other as usize]);
        }
        if let Some(detokenizer) = &options.detokenizer {
            sample
                .text
                .extend_from_slice(detokenizer.token_bytes(token));
        }
        let has = |text: &String| {
            let mut windows = sample.text.windows(text.len().max(1));
            windows.any(|window| window == text.as_bytes())
        };
        let has_stop_text = match &request.params.stop {
            None | Some(Stop::Never | Stop::AnyToken(_)) => false,
            Some(Stop::Text(text)) => has(text),
            Some(Stop::AnyText(texts)) => texts.iter().any(has),
        };
        let has_minimum = sample.tokens.len() > request.extras.min_tokens as usize;
        let stops =
            end_tokens(request).contains(&token) || !may_go_on || has_stop_text && has_minimum;
        let is_long = Some(sample.tokens.len() as u32) == request.params.max_tokens;
        sample.ended = if stops {
            Some(StopReason::Stop)
        } else {
            is_long.then_some(StopReason::Length)
        };
        Ok((token, logprob))
    }

    fn last_alternatives(&self, index: usize) -> Vec<(u32, f32)> {
        let (tokens, logprobs) = &self.samples[index].topk;
        let k = self.request.options.topk_sample_logprobs as usize;
        let start = tokens.len().saturating_sub(k);
        let last = tokens[start..].iter().zip(&logprobs[start..]);
        let last = last.map(|(token, logprob)| (*token, *logprob));
        last.take(MAX_ALTERNATIVES).collect()
    }

    fn output(self) -> Result<SampleOutput, InvalidInput> {
        let options = &self.request.options;
        let mut output = SampleOutput::default();
        let prompt = &self.request.prompt;
        if options.prompt_logprobs {
            let scored = prompt.windows(2).map(|pair| {
                let all = logprobs(&self.weights, pair[0]);
                all[pair[1] as usize]
            });
            output.prompt_logprobs = Some(std::iter::once(f32::NAN).chain(scored).collect());
        }
        let k = options.topk_sample_logprobs as usize;
        for sample in self.samples {
            let reason = sample.ended.unwrap_or(StopReason::Length);
            let mut sequence = SampledSequence::new(sample.tokens, reason);
            sequence.logprobs = Some(sample.logprobs);
            if k > 0 {
                let (tokens, logprobs) = sample.topk;
                sequence.topk_logprobs = Some(TopkLogprobs::new(k, tokens, logprobs)?);
            }
            output.sequences.push(sequence);
        }
        Ok(output)
    }
}

/// Returns the likeliest tokens, the first of equal ones first.
fn likeliest(logprobs: &[f32], count: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..logprobs.len() as u32).collect();
    tokens.sort_by(|a, b| logprobs[*b as usize].total_cmp(&logprobs[*a as usize]));
    tokens.truncate(count);
    tokens
}

/// Turns logits into log-probabilities.
fn normalize(logits: &mut [f32]) {
    let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
    for logit in logits {
        *logit -= sum.ln() as f32;
    }
}

/// Draws a number of `0..1` from a seed and a place.
fn uniform(seed: u64, sample: u64, position: u64) -> f64 {
    let mut bits = seed ^ (sample << 32) ^ position;
    for _ in 0..2 {
        bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
    }
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
