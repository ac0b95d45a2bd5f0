//! Sampling sessions and samples.

use std::sync::Arc;

use axum::extract::{Path, State};
use tinkrs_engine::sample;
use tinkrs_types::{
    CheckpointKind, InvalidInput, ModelInput, Promise, RequestId, SampleOptions, SamplerInfo,
    SamplingSessionId, SequenceId, TinkerPath,
};
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::op::create_sampling_session::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse,
};

use super::{Plain, Tagged};
use crate::Server;
use crate::error::Refusal;
use crate::extract::Decoded;
use crate::registry::{Sampler, Weights};
use crate::worker::{Command, SampleJob};

pub(crate) async fn create_session(
    State(server): State<Server>,
    Decoded(request): Decoded<CreateSamplingSessionRequest>,
) -> Result<Tagged<CreateSamplingSessionResponse>, Refusal> {
    let sampling_session_id = server.create_sampling_session(&request)?;
    Ok(Tagged(CreateSamplingSessionResponse {
        sampling_session_id,
    }))
}

pub(crate) async fn info(
    State(server): State<Server>,
    Path(sampler_id): Path<String>,
) -> Result<Plain<SamplerInfo>, Refusal> {
    server.sampler_info(sampler_id.into()).map(Plain)
}

pub(crate) async fn asample(
    State(server): State<Server>,
    Decoded(request): Decoded<SampleRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server.sample(request).map(Plain)
}

impl Server {
    fn create_sampling_session(
        &self,
        request: &CreateSamplingSessionRequest,
    ) -> Result<SamplingSessionId, Refusal> {
        let weights = self.weights(request.base_model.as_deref(), request.model_path.as_deref())?;
        let mut registry = self.registry();
        registry.open_session(&request.session_id)?;
        let number = request.sampling_session_seq_id;
        let id = SamplingSessionId::in_session(&request.session_id, number);
        let session = request.session_id.clone();
        // A repeated request gets the session that the first one opened.
        registry
            .samplers
            .entry(id.clone())
            .or_insert_with(|| Sampler::new(session, weights));
        Ok(id)
    }

    /// Finds what is to be sampled from, by one of its two names.
    fn weights(
        &self,
        base_model: Option<&str>,
        model_path: Option<&str>,
    ) -> Result<Weights, Refusal> {
        match (base_model, model_path) {
            (Some(name), None) => Ok(Weights {
                base: Arc::clone(self.base(name)?),
                adapter: None,
                path: None,
            }),
            (base_model, Some(path)) => {
                let path: TinkerPath = path.parse()?;
                path.require(CheckpointKind::Sampler)?;
                let saved = self.checkpoint(&path)?;
                if base_model.is_some_and(|name| name != saved.info.base_model) {
                    return Err(Refusal::bad_request(format!(
                        "`base_model`: `{path}` belongs to `{}`",
                        saved.info.base_model
                    )));
                }
                Ok(Weights {
                    base: Arc::clone(self.base(&saved.info.base_model)?),
                    adapter: Some(saved.folder),
                    path: Some(path),
                })
            }
            (None, None) => Err(Refusal::bad_request(
                "expected `base_model` or `model_path`: what is to be sampled from?",
            )),
        }
    }

    fn sampler_info(&self, sampler_id: SamplingSessionId) -> Result<SamplerInfo, Refusal> {
        let mut registry = self.registry();
        let weights = &registry.sampler(&sampler_id)?.weights;
        Ok(SamplerInfo {
            base_model: weights.base.name.clone(),
            model_path: weights.path.clone(),
            sampler_id,
        })
    }

    /// Queues a request for samples, unless it was queued before.
    fn sample(&self, request: SampleRequest) -> Result<Promise, Refusal> {
        let count = request.num_samples;
        let session = request.sampling_session_id.clone();
        let seq_id = request.seq_id;
        let stateless = match &session {
            Some(_) if request.base_model.is_some() || request.model_path.is_some() => {
                return Err(Refusal::bad_request(
                    "`base_model` and `model_path` do not go with `sampling_session_id`",
                ));
            }
            Some(_) => None,
            None => {
                Some(self.weights(request.base_model.as_deref(), request.model_path.as_deref())?)
            }
        };
        let request = read_request(request)?;

        let mut registry = self.registry();
        let (weights, sampler) = match (stateless, &session) {
            (Some(weights), _) => (weights, None),
            (None, Some(id)) => {
                let sampler = registry.open_sampler(id)?;
                let known = seq_id.and_then(|number| sampler.requests.get(&number));
                if let Some((id, count)) = known {
                    return Ok(promise(id.clone(), *count));
                }
                (sampler.weights.clone(), Some(sampler))
            }
            (None, None) => unreachable!("without a session there are weights"),
        };
        let permit = weights.base.sample_permit()?;
        let answer = self.inner().futures.promise();
        let id = answer.id().clone();
        if let (Some(sampler), Some(number)) = (sampler, seq_id) {
            sampler.requests.insert(number, (id.clone(), count));
        }
        weights.base.send(Command::Sample(SampleJob {
            adapter: weights.adapter,
            request,
            answer,
            permit,
        }));
        Ok(promise(id, count))
    }
}

/// Sequence ids are made of the request's: whoever repeats the request gets the same ones.
fn promise(request_id: RequestId, count: u32) -> Promise {
    let sequence = |index| SequenceId::new(format!("{request_id}-{index}"));
    Promise {
        sample_sequence_ids: Some((0..count).map(sequence).collect()),
        model_id: None,
        request_id,
    }
}

/// The most samples of one request.
const SAMPLES: u32 = 4096;

fn read_request(request: SampleRequest) -> Result<sample::SampleRequest, InvalidInput> {
    if !(1..=SAMPLES).contains(&request.num_samples) {
        let allowed = format!("1 to {SAMPLES}");
        return Err(InvalidInput::new(
            "num_samples",
            request.num_samples,
            allowed,
        ));
    }
    if request.record_stability_info == Some(true) {
        return Err(InvalidInput::new(
            "record_stability_info",
            true,
            "false: this server has no loss that needs it",
        ));
    }
    request.sampling_params.check()?;
    let Some(max_tokens) = request.sampling_params.max_tokens else {
        return Err(InvalidInput::new(
            "sampling_params.max_tokens",
            "nothing",
            "1 or more: there is no default",
        ));
    };
    let options = SampleOptions {
        prompt_logprobs: request.prompt_logprobs.unwrap_or(false),
        topk_prompt_logprobs: request.topk_prompt_logprobs,
        topk_sample_logprobs: request.topk_sample_logprobs,
        target_prompt_logprobs: request.target_prompt_logprobs,
        prompt_alt_tokens_k: request.prompt_alt_tokens_k,
        prompt_logprobs_last_n: request.prompt_logprobs_last_n,
        record_stability_info: false,
    };
    options.check()?;
    Ok(sample::SampleRequest {
        num_samples: request.num_samples,
        params: request.sampling_params,
        options,
        fallback_seed: fastrand::u64(..),
        ..sample::SampleRequest::new(read_prompt(&request.prompt)?, max_tokens)
    })
}

fn read_prompt(prompt: &ModelInput) -> Result<Vec<u32>, InvalidInput> {
    prompt.to_tokens().ok_or_else(|| {
        let mut chunks = prompt.chunks().iter().map(|chunk| chunk.kind());
        let index = chunks.clone().position(|kind| kind != "encoded_text");
        let index = index.unwrap_or_default();
        InvalidInput::new(
            format!("prompt.chunks[{index}]"),
            chunks.nth(index).unwrap_or("something else"),
            "encoded_text: the models of this server read text only",
        )
    })
}
