//! The sampler behind the traits.

use std::sync::Arc;

use tinkrs_backend::{
    self as backend, AdapterId, SampleEvent, SampleRequest, SamplerOptions, Ticket,
};

use crate::Model;
use crate::sample::{self, Event, Sampler, SamplerSettings, WeightsId};

pub(super) struct EngineSampler(Sampler);

impl EngineSampler {
    pub(super) fn new(model: &Arc<Model>, options: SamplerOptions) -> Self {
        let mut settings = SamplerSettings {
            queued_requests: options.queued_requests,
            draft_tokens: options.draft_tokens,
            ..SamplerSettings::default()
        };
        if let Some(bytes) = options.cache_bytes {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            // A fifth for beginnings that are shared, as by default.
            settings.prefix_cache_bytes = bytes / 5;
            settings.cache_bytes = bytes - bytes / 5;
        }
        let sampler = Sampler::new(Arc::clone(model), settings);
        Self(match options.detokenizer {
            Some(detokenizer) => sampler.with_detokenizer(detokenizer),
            None => sampler,
        })
    }
}

impl backend::Sampler for EngineSampler {
    fn add_adapter(&mut self, adapter: &backend::Adapter) -> Result<AdapterId, backend::Error> {
        let WeightsId(id) = self.0.add_adapter(adapter.downcast()?)?;
        Ok(AdapterId(id))
    }

    fn remove_adapter(&mut self, AdapterId(id): AdapterId) {
        self.0.remove_adapter(WeightsId(id));
    }

    fn submit(&mut self, request: SampleRequest) -> Result<Ticket, backend::Error> {
        let sample::Ticket(ticket) = self.0.submit(request.into())?;
        Ok(Ticket(ticket))
    }

    fn cancel(&mut self, Ticket(ticket): Ticket) -> bool {
        self.0.cancel(sample::Ticket(ticket))
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    fn step(&mut self) -> Vec<SampleEvent> {
        self.0.step().into_iter().map(SampleEvent::from).collect()
    }
}

impl From<SampleRequest> for sample::SampleRequest {
    fn from(request: SampleRequest) -> Self {
        let adapter = request.adapter;
        Self {
            weights: adapter.map_or(WeightsId::BASE, |AdapterId(id)| WeightsId(id)),
            prompt: request.prompt,
            num_samples: request.num_samples,
            params: request.params,
            extras: request.extras,
            options: request.options,
            fallback_seed: request.fallback_seed,
            share: request.share,
        }
    }
}

impl From<Event> for SampleEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::Token {
                ticket: sample::Ticket(ticket),
                sample,
                token,
                logprob,
                alternatives,
            } => Self::Token {
                ticket: Ticket(ticket),
                sample,
                token,
                logprob,
                alternatives,
            },
            Event::Finished {
                ticket: sample::Ticket(ticket),
                output,
            } => Self::Finished {
                ticket: Ticket(ticket),
                output,
            },
            Event::Failed {
                ticket: sample::Ticket(ticket),
                error,
            } => Self::Failed {
                ticket: Ticket(ticket),
                error: error.into(),
            },
        }
    }
}
