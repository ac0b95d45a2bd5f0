//! Samples of all sessions, batched together.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use tinkrs_backend::{Adapter, Backend, Detokenizer, SampleEvent, Sampler, SamplerOptions, Ticket};
use tinkrs_chat::{TokenBytes, Tokenizer};
use tinkrs_types::{RequestId, SampleOutput, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use super::adapters::Adapters;
use super::{SampleJob, failure};
use crate::auth::Owner;
use crate::metrics::Metrics;
use crate::results::{OperationResult, Responder};
use crate::shared::Shared;
use crate::store::{Ending, Usage, UsageKind, files};
use crate::watch::TokenSender;

/// The sampler of one base model, and who waits for what.
pub(super) struct Sampling {
    base_model: String,
    backend: Arc<dyn Backend>,
    metrics: Metrics,
    options: SamplerOptions,
    sampler: Box<dyn Sampler>,
    adapters: Adapters,
    waiting: HashMap<Ticket, Waiting>,
}

struct Waiting {
    responder: Responder,
    owner: Owner,
    session: Option<SessionId>,
    prompt_tokens: u64,
    begun: Timestamp,
    _permit: Option<OwnedSemaphorePermit>,
    tokens: TokenSender,
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
        shared: &Shared,
    ) -> Self {
        // The server's queue is the one that can be full; this one must never be. After a restart it
        // holds what the queue held before, besides what comes.
        let options = SamplerOptions {
            queued_requests: shared.settings.queued_samples.saturating_mul(2),
            cache_bytes: Some(shared.memory.plan().caches_of_a_model()),
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
            adapters: Adapters::default(),
            waiting: HashMap::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sampler.is_idle()
    }

    pub(super) fn submit(&mut self, job: SampleJob) {
        let SampleJob {
            owner,
            session,
            adapter,
            mut request,
            responder,
            permit,
            tokens,
        } = job;
        let (backend, sampler) = (&*self.backend, &mut *self.sampler);
        let adapter_id = match &adapter {
            None => Ok(None),
            Some(folder) => self.adapters.find(folder, backend, sampler).map(Some),
        };
        let prompt_tokens = request.prompt.len() as u64;
        let ticket = adapter_id.and_then(|adapter| {
            request.adapter = adapter;
            self.sampler.submit(request)
        });
        match ticket {
            Ok(ticket) => {
                let waiting = Waiting {
                    responder,
                    owner,
                    session,
                    prompt_tokens,
                    begun: Timestamp::now(),
                    _permit: permit,
                    tokens,
                };
                self.waiting.insert(ticket, waiting);
            }
            Err(_) if adapter.is_some_and(|folder| !folder.exists()) => {
                let why = "the checkpoint that is sampled from was deleted";
                responder.finish(OperationResult::user_error(why));
            }
            Err(error) => responder.finish(failure(&error)),
        }
    }

    pub(super) fn cancel(&mut self, owner: Owner, id: &RequestId) {
        let mut waiting = self.waiting.iter();
        let found = waiting.find(|(_, w)| w.responder.id() == id && w.owner == owner);
        if let Some(ticket) = found.map(|(ticket, _)| *ticket) {
            self.sampler.cancel(ticket);
            self.finish(
                ticket,
                OperationResult::user_error("the request was cancelled"),
            );
        }
    }

    /// Keeps an adapter that was just saved.
    pub(super) fn adopt(&mut self, folder: PathBuf, adapter: &Adapter) {
        // An adapter that is not taken now is loaded from its folder when it is asked for.
        let _ = self.adapters.add(folder, adapter, &mut *self.sampler);
    }

    /// Deletes adapters, in memory and on disk.
    pub(super) fn forget(&mut self, folders: &[PathBuf]) {
        for folder in folders {
            self.adapters.forget(folder, &mut *self.sampler);
            files::remove(folder);
        }
    }

    /// Advances every sample by a token.
    pub(super) fn step(&mut self) {
        let Ok(events) = catch_unwind(AssertUnwindSafe(|| self.sampler.step())) else {
            tracing::error!("sampling panicked; the samples under way are lost");
            self.sampler = self.backend.sampler(self.options.clone());
            self.adapters = Adapters::default();
            for (_, waiting) in self.waiting.drain() {
                let outcome = OperationResult::server_error("an internal error ended this sample");
                waiting.responder.finish(outcome);
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
                    ..
                } => {
                    if let Some(waiting) = self.waiting.get(&ticket) {
                        waiting.tokens.push(sample, token);
                    }
                }
            }
        }
    }

    fn finish_sample(&mut self, ticket: Ticket, output: SampleOutput) {
        let Some(waiting) = self.waiting.remove(&ticket) else {
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
        let begun = waiting.session.clone();
        waiting.responder.finish(Ending {
            usage: usage.collect(),
            begun: begun.map(|session| (session, waiting.begun)),
            ..OperationResult::sample(output).into()
        });
    }

    fn count(&self, outcome: &'static str) {
        self.metrics.operation("sample", outcome);
    }

    fn finish(&mut self, ticket: Ticket, outcome: OperationResult) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            self.count("failed");
            waiting.responder.finish(Ending {
                begun: waiting.session.map(|session| (session, waiting.begun)),
                ..outcome.into()
            });
        }
    }
}
