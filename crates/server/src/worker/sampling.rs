//! Samples of all sessions, batched together.
//!
//! Owners share the batch: requests wait in a line for each of them ([`feed`](super::feed)), and the sampler
//! knows whose they are. So a flood of one owner's requests, or one request for thousands of samples, takes its
//! part of the batch and holds up nobody else's.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use tinkrs_backend::{
    AdapterId, Backend, Detokenizer, Need, SampleEvent, Sampler, SamplerOptions, Ticket,
};
use tinkrs_chat::{TokenBytes, Tokenizer};
use tinkrs_types::{RequestId, SampleOutput, SessionId};

use super::adapters::{Adapters, InMemory, NotLoaded};
use super::feed::Feed;
use super::training::NewAdapter;
use super::{SampleJob, failure};
use crate::auth::Owner;
use crate::error::chain;
use crate::lock::lock;
use crate::metrics::Metrics;
use crate::places::QueuePlace;
use crate::results::{OperationResult, SampleReply};
use crate::shared::Shared;
use crate::store::{Usage, UsageKind};
use crate::token_watch::TokenSender;
use crate::under_way::Mark;

/// The sampler of one base model, and who waits for what.
pub(super) struct Sampling {
    base_model: String,
    backend: Arc<dyn Backend>,
    metrics: Metrics,
    options: SamplerOptions,
    sampler: Box<dyn Sampler>,
    /// How many bytes of adapters are in memory at most.
    adapter_bytes: u64,
    adapters: Adapters,
    feed: Feed<SampleJob>,
    /// Those who wait for a request that the sampler has.
    waiting: HashMap<Ticket, Waiting>,
    /// Requests that the server may have died of. Each is drawn alone, before all others.
    suspects: VecDeque<SampleJob>,
    /// The one of them that is being drawn.
    alone: Option<RequestId>,
    mark: Arc<Mutex<Mark>>,
    shared: Arc<Shared>,
    /// Requests whose adapters have no room yet, in the order of arrival.
    delayed: VecDeque<SampleJob>,
}

struct Waiting {
    reply: SampleReply,
    owner: Owner,
    session: Option<SessionId>,
    prompt_tokens: u64,
    samples: usize,
    /// How many of the samples have begun.
    begun_samples: usize,
    begun: Timestamp,
    _place: Option<QueuePlace>,
    /// For the bytes of the request, which the sampler has.
    _memory: Option<QueuePlace>,
    _adapter: Option<InMemory>,
    tokens: TokenSender,
}

impl Waiting {
    fn unbegun(&self) -> usize {
        self.samples - self.begun_samples
    }
}

fn cancelled() -> OperationResult {
    OperationResult::user_error("the request was cancelled")
}

/// Tells the backend what text a token stands for.
struct Vocabulary(TokenBytes);

impl Detokenizer for Vocabulary {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.get(token)
    }
}

impl Sampling {
    pub(super) fn new(
        base_model: &str,
        backend: Arc<dyn Backend>,
        tokenizer: Option<Arc<Tokenizer>>,
        shared: &Arc<Shared>,
        mark: Arc<Mutex<Mark>>,
    ) -> Self {
        // The server's queue is the one that can be full; this one must never be.
        let options = SamplerOptions {
            queued_requests: usize::MAX,
            cache_bytes: Some(shared.memory.plan().caches_of_a_model()),
            draft_tokens: shared.settings.draft_tokens,
            detokenizer: tokenizer.map(|tokenizer| {
                let bytes = tokenizer.token_bytes(backend.describe().vocabulary);
                Arc::new(Vocabulary(bytes)) as Arc<dyn Detokenizer>
            }),
        };
        Self {
            base_model: base_model.to_owned(),
            sampler: backend.sampler(options.clone()),
            metrics: shared.metrics.clone(),
            backend,
            options,
            adapters: Adapters::new(shared.memory.plan().adapters_of_a_model()),
            adapter_bytes: shared.memory.plan().adapters_of_a_model(),
            feed: Feed::new(),
            waiting: HashMap::new(),
            suspects: VecDeque::new(),
            alone: None,
            mark,
            shared: Arc::clone(shared),
            delayed: VecDeque::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sampler.is_idle()
            && self.feed.is_empty()
            && self.delayed.is_empty()
            && self.suspects.is_empty()
            && self.alone.is_none()
    }

    /// Takes a request, which waits until the sampler has use for it.
    pub(super) fn take(&mut self, job: SampleJob) {
        let samples = job.request.num_samples as usize;
        self.feed.push(job.owner, samples, job);
    }

    /// Hands a request to the sampler. One whose adapter has no room waits until samples of others have
    /// ended, and so do all others while one is drawn that the server may have died of.
    fn submit(&mut self, job: SampleJob) {
        if job.is_suspect {
            self.suspects.push_back(job);
            return;
        }
        if self.alone.is_some() || !self.suspects.is_empty() {
            self.delayed.push_back(job);
            return;
        }
        if let Err(job) = self.try_submit(job) {
            self.delayed.push_back(*job);
        }
    }

    /// Tries those again that wait for room, in their order.
    fn submit_delayed(&mut self) {
        while let Some(job) = self.delayed.pop_front() {
            if let Err(job) = self.try_submit(job) {
                self.delayed.push_front(*job);
                return;
            }
        }
    }

    /// Hands a request to the sampler, or gives it back if its adapter has no room yet.
    fn try_submit(&mut self, job: SampleJob) -> Result<(), Box<SampleJob>> {
        let (owner, samples) = (job.owner, job.request.num_samples as usize);
        let (backend, sampler) = (&*self.backend, &mut *self.sampler);
        let adapter = job.adapter.as_deref();
        let adapter = adapter.map(|folder| self.adapters.find(folder, backend, sampler));
        match adapter.transpose() {
            Err(NotLoaded::Wait) => return Err(Box::new(job)),
            Ok(found) => {
                let (adapter, in_memory) = found.unzip();
                if self.hand_over(job, adapter, in_memory) {
                    return Ok(());
                }
            }
            Err(NotLoaded::Backend(_) | NotLoaded::Damaged(_))
                if job.adapter.as_ref().is_some_and(|folder| !folder.exists()) =>
            {
                let why = "the checkpoint that is sampled from was deleted";
                job.reply.fail(OperationResult::user_error(why), None);
            }
            Err(NotLoaded::Backend(error)) => job.reply.fail(failure(&error), None),
            Err(NotLoaded::Damaged(damage)) => {
                let outcome = OperationResult::server_error(chain(&damage));
                job.reply.fail(outcome, None);
            }
            Err(error @ NotLoaded::TooLarge { .. }) => {
                let outcome = OperationResult::user_error(error.to_string());
                job.reply.fail(outcome, None);
            }
        }
        self.feed.begun(owner, samples);
        Ok(())
    }

    /// Hands a request whose adapter is in memory to the sampler. Returns whether that took it.
    fn hand_over(
        &mut self,
        job: SampleJob,
        adapter: Option<AdapterId>,
        in_memory: Option<InMemory>,
    ) -> bool {
        let SampleJob {
            owner,
            session,
            request,
            reply,
            place,
            tokens,
            ..
        } = job;
        let read = request.into_request(&self.shared.store, reply.id());
        let (mut request, memory) = match read {
            Ok(read) => read,
            Err(unreadable) => {
                reply.fail(OperationResult::server_error(unreadable.detail()), None);
                return false;
            }
        };
        let prompt_tokens = request.prompt.len() as u64;
        let samples = request.num_samples as usize;
        request.share = owner.number();
        request.adapter = adapter;
        match self.sampler.submit(request) {
            Ok(ticket) => {
                let waiting = Waiting {
                    reply,
                    owner,
                    session,
                    prompt_tokens,
                    samples,
                    begun_samples: 0,
                    begun: Timestamp::now(),
                    _place: place,
                    _memory: memory,
                    _adapter: in_memory,
                    tokens,
                };
                self.waiting.insert(ticket, waiting);
                true
            }
            Err(error) => {
                reply.fail(failure(&error), None);
                false
            }
        }
    }

    pub(super) fn cancel(&mut self, owner: Owner, id: &RequestId) {
        let is_meant = |job: &SampleJob| job.reply.id() == id;
        if let Some(job) = self.feed.remove(owner, is_meant) {
            self.count("failed");
            job.reply.fail(cancelled(), None);
            return;
        }
        let mut waiting = self.waiting.iter();
        let found = waiting.find(|(_, w)| w.reply.id() == id && w.owner == owner);
        if let Some(ticket) = found.map(|(ticket, _)| *ticket) {
            self.sampler.cancel(ticket);
            self.finish(ticket, cancelled());
        }
        let mut delayed = self.delayed.iter();
        let delayed = delayed.position(|job| job.reply.id() == id && job.owner == owner);
        if let Some(job) = delayed.and_then(|place| self.delayed.remove(place)) {
            self.count("failed");
            self.feed.begun(owner, job.request.num_samples as usize);
            job.reply.fail(cancelled(), None);
        }
    }

    /// Keeps an adapter that was just saved.
    pub(super) fn adopt(&mut self, new: NewAdapter) {
        let lora = new.lora;
        let bytes = self.backend.memory(&Need::Adapter { lora });
        let sampler = &mut *self.sampler;
        self.adapters.add(new.folder, bytes, &new.adapter, sampler);
    }

    /// Deletes adapters from memory. Requests that came before still have them.
    pub(super) fn forget(&mut self, folders: &[PathBuf]) {
        let uses_one = |job: &SampleJob| {
            let adapter = job.adapter.as_ref();
            adapter.is_some_and(|folder| folders.contains(folder))
        };
        for job in self.feed.extract(uses_one) {
            self.submit(job);
        }
        for folder in folders {
            self.adapters.forget(folder, &mut *self.sampler);
        }
    }

    /// Advances every sample by a token.
    pub(super) fn step(&mut self) {
        while let Some(job) = self.feed.pop() {
            self.submit(job);
        }
        if self.sampler.is_idle() {
            self.draw_next_alone();
        }
        match &self.alone {
            // If the server dies now, it is of this one.
            Some(id) => lock(&self.mark).operation(id),
            None => {
                if self.suspects.is_empty() {
                    self.submit_delayed();
                }
                lock(&self.mark).samples(&self.base_model);
            }
        }
        self.advance();
    }

    /// Takes the next request that the server may have died of, when the one before has ended.
    fn draw_next_alone(&mut self) {
        if let Some(id) = self.alone.take() {
            self.shared.under_way.ended(&id);
        }
        let Some(job) = self.suspects.pop_front() else {
            return;
        };
        let id = job.reply.id().clone();
        lock(&self.mark).operation(&id);
        match self.try_submit(job) {
            Ok(()) => self.alone = Some(id),
            Err(job) => self.suspects.push_front(*job),
        }
    }

    fn advance(&mut self) {
        let Ok(events) = catch_unwind(AssertUnwindSafe(|| self.sampler.step())) else {
            tracing::error!("sampling panicked; the samples under way are lost");
            self.sampler = self.backend.sampler(self.options.clone());
            self.adapters = Adapters::new(self.adapter_bytes);
            for (_, waiting) in self.waiting.drain() {
                self.feed.begun(waiting.owner, waiting.unbegun());
                let outcome = OperationResult::server_error("an internal error ended this sample");
                waiting.reply.fail(outcome, None);
            }
            return;
        };
        for event in events {
            match event {
                SampleEvent::Finished { ticket, output } => {
                    self.finish_sample(ticket, *output);
                }
                SampleEvent::Failed { ticket, error } => self.finish(ticket, failure(&error)),
                SampleEvent::Token {
                    ticket,
                    sample,
                    token,
                    logprob,
                    alternatives,
                } => {
                    if let Some(waiting) = self.waiting.get_mut(&ticket) {
                        waiting.tokens.push(sample, token, logprob, alternatives);
                        // Samples begin one after the other.
                        let begun = (sample + 1).saturating_sub(waiting.begun_samples);
                        waiting.begun_samples += begun;
                        self.feed.begun(waiting.owner, begun);
                    }
                }
            }
        }
    }

    fn finish_sample(&mut self, ticket: Ticket, output: SampleOutput) {
        let Some(waiting) = self.end(ticket) else {
            return;
        };
        let cached = u64::from(output.prompt_cache_hit_tokens);
        let sampled: usize = output.sequences.iter().map(|s| s.tokens.len()).sum();
        let usage = [
            (UsageKind::CachedPrefill, cached),
            (
                UsageKind::Prefill,
                waiting.prompt_tokens.saturating_sub(cached),
            ),
            (UsageKind::Sampling, sampled as u64),
        ];
        self.count("done");
        for (kind, tokens) in usage {
            let name = match kind {
                UsageKind::CachedPrefill => "cached",
                UsageKind::Prefill => "prefilled",
                UsageKind::Sampling | UsageKind::Training => "sampled",
            };
            self.metrics.tokens(name, tokens);
        }
        let usage = usage.into_iter().filter(|(_, tokens)| *tokens > 0);
        let usage = usage.map(|(kind, tokens)| Usage {
            owner: waiting.owner,
            base_model: self.base_model.clone(),
            session: waiting.session.clone(),
            kind,
            tokens,
        });
        let usage = usage.collect();
        let begun = waiting.session.map(|session| (session, waiting.begun));
        let store = &self.shared.store;
        waiting.reply.finish(output, usage, begun, store);
    }

    /// Takes note that the sampler has a request no more.
    fn end(&mut self, ticket: Ticket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        self.feed.begun(waiting.owner, waiting.unbegun());
        Some(waiting)
    }

    fn count(&self, outcome: &'static str) {
        self.metrics.operation("sample", outcome);
    }

    fn finish(&mut self, ticket: Ticket, outcome: OperationResult) {
        if let Some(waiting) = self.end(ticket) {
            self.count("failed");
            let begun = waiting.session.map(|session| (session, waiting.begun));
            waiting.reply.fail(outcome, begun);
        }
    }
}
