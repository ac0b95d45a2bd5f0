//! Sampling sessions and samples.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use jiff::Timestamp;
use tinkrs_engine::sample;
use tinkrs_types::protocol::Promise;
use tinkrs_types::rest::SamplerInfo;
use tinkrs_types::sampling::SampleOptions;
use tinkrs_types::{
    CheckpointKind, InvalidInput, ModelInput, RequestId, SamplingSessionId, SequenceId, SessionId,
    TinkerPath,
};
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::op::create_sampling_session::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse,
};
use tinkrs_wire::op::join_sampling_session::{
    JoinSamplingSessionRequest, JoinSamplingSessionResponse,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use super::{Plain, Tagged};
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, InPath, Json};
use crate::feed::Feed;
use crate::outcome::Outcome;
use crate::queue::digest;
use crate::record::SamplerRecord;
use crate::registry::{Promised, Registry, Sampler};
use crate::request::{Kind, read_json};
use crate::results::Answer;
use crate::state::Base;
use crate::store::{Change, Digest, NewRequest};
use crate::watch::DrawnToken;
use crate::worker::{Command, SampleJob};

pub(crate) async fn create_session(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<CreateSamplingSessionRequest>,
) -> Result<Tagged<CreateSamplingSessionResponse>, ApiError> {
    let sampling_session_id = server.create_sampling_session(owner, &request).await?;
    Ok(Tagged(CreateSamplingSessionResponse {
        sampling_session_id,
    }))
}

pub(crate) async fn join_session(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<JoinSamplingSessionRequest>,
) -> Result<Tagged<JoinSamplingSessionResponse>, ApiError> {
    let id = &request.sampling_session_id;
    let client_counter = server.join_sampling_session(owner, id).await?;
    Ok(Tagged(JoinSamplingSessionResponse { client_counter }))
}

pub(crate) async fn info(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(sampler_id): InPath<String>,
) -> Result<Plain<SamplerInfo>, ApiError> {
    server.sampler_info(owner, sampler_id.into()).map(Plain)
}

pub(crate) async fn asample(
    State(server): State<Server>,
    Caller(owner): Caller,
    Json(body): Json,
) -> Result<Plain<Promise>, ApiError> {
    let request = read_json(&body)?;
    server.sample(owner, request, body).await.map(Plain)
}

/// What is sampled from.
struct Weights {
    base: Arc<Base>,
    /// In the data folder; `None` for the base model itself.
    adapter: Option<PathBuf>,
    path: Option<TinkerPath>,
    session: Option<SessionId>,
    /// Whoever watches the tokens of the sampling session.
    watcher: Option<UnboundedSender<DrawnToken>>,
}

impl Server {
    async fn create_sampling_session(
        &self,
        owner: Owner,
        request: &CreateSamplingSessionRequest,
    ) -> Result<SamplingSessionId, ApiError> {
        let (name, path) = (request.base_model.as_deref(), request.model_path.as_deref());
        let weights = self.weights(owner, name, path)?;
        let number = request.sampling_session_seq_id;
        let id = SamplingSessionId::in_session(&request.session_id, number);
        let change = {
            let mut registry = self.registry();
            registry.open_session(owner, &request.session_id)?;
            if let Some(known) = registry.find_sampler(owner, &id)? {
                // A repeated request gets the session that the first one opened.
                let known = &known.record;
                let is_same = known.base_model == weights.base.name
                    && known.path == weights.path
                    && known.adapter.is_some() == weights.adapter.is_some();
                if !is_same {
                    return Err(ApiError::bad_request(format!(
                        "`sampling_session_seq_id`: {number} was used for a session with other \
                         weights"
                    )));
                }
                Change::Nothing
            } else {
                let record = SamplerRecord {
                    id: id.clone(),
                    owner,
                    session: request.session_id.clone(),
                    base_model: weights.base.name.clone(),
                    adapter: weights.adapter,
                    path: weights.path,
                    clones: 0,
                };
                let sampler = Sampler::new(record.clone());
                registry.samplers.insert(id.clone(), sampler);
                Change::Sampler(record)
            }
        };
        let is_new = matches!(change, Change::Sampler(_));
        if let Err(error) = self.shared().store.write(change).await {
            if is_new {
                self.registry().samplers.remove(&id);
            }
            return Err(error.into());
        }
        Ok(id)
    }

    /// Gives another client of a sampling session its own block of numbers.
    async fn join_sampling_session(
        &self,
        owner: Owner,
        id: &SamplingSessionId,
    ) -> Result<u64, ApiError> {
        let record = {
            let mut registry = self.registry();
            let sampler = registry.open_sampler(owner, id)?;
            sampler.record.clones += 1;
            sampler.record.clone()
        };
        let clone = u64::from(record.clones);
        self.shared().store.write(Change::Sampler(record)).await?;
        Ok(clone)
    }

    /// Finds what is to be sampled from, by one of its two names.
    fn weights(
        &self,
        owner: Owner,
        base_model: Option<&str>,
        model_path: Option<&str>,
    ) -> Result<Weights, ApiError> {
        match (base_model, model_path) {
            (Some(name), None) => Ok(Weights {
                base: Arc::clone(self.base(name)?),
                adapter: None,
                path: None,
                session: None,
                watcher: None,
            }),
            (base_model, Some(path)) => {
                let path: TinkerPath = path.parse()?;
                path.require(CheckpointKind::Sampler)?;
                let saved = self.checkpoint(owner, &path)?;
                if base_model.is_some_and(|name| name != saved.info.base_model) {
                    return Err(ApiError::bad_request(format!(
                        "`base_model`: `{path}` belongs to `{}`",
                        saved.info.base_model
                    )));
                }
                Ok(Weights {
                    base: Arc::clone(self.base(&saved.info.base_model)?),
                    adapter: Some(saved.folder),
                    path: Some(path),
                    session: None,
                    watcher: None,
                })
            }
            (None, None) => Err(ApiError::bad_request(
                "expected `base_model` or `model_path`: what is to be sampled from?",
            )),
        }
    }

    /// Finds what a request is to be sampled from.
    fn weights_for(
        &self,
        registry: &mut Registry,
        owner: Owner,
        request: &SampleRequest,
    ) -> Result<Weights, ApiError> {
        let (name, path) = (request.base_model.as_deref(), request.model_path.as_deref());
        match &request.sampling_session_id {
            None => self.weights(owner, name, path),
            Some(_) if name.is_some() || path.is_some() => Err(ApiError::bad_request(
                "`base_model` and `model_path` do not go with `sampling_session_id`",
            )),
            Some(id) => {
                let record = &registry.open_sampler(owner, id)?.record;
                Ok(Weights {
                    base: Arc::clone(self.base(&record.base_model)?),
                    adapter: record.adapter.clone(),
                    path: record.path.clone(),
                    session: Some(record.session.clone()),
                    watcher: self.shared().watchers.of(id),
                })
            }
        }
    }

    fn sampler_info(
        &self,
        owner: Owner,
        sampler_id: SamplingSessionId,
    ) -> Result<SamplerInfo, ApiError> {
        let mut registry = self.registry();
        let record = &registry.sampler(owner, &sampler_id)?.record;
        Ok(SamplerInfo::new(
            sampler_id,
            record.base_model.clone(),
            record.path.clone(),
        ))
    }

    /// Queues a request for samples, unless it was queued before.
    async fn sample(
        &self,
        owner: Owner,
        request: SampleRequest,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let count = request.num_samples;
        let sampler = request.sampling_session_id.clone();
        let number = request.seq_id.filter(|_| sampler.is_some());
        let digest = digest(&body);
        let seed = fastrand::u64(..);
        if let (Some(id), Some(number)) = (&sampler, number)
            && let Some(id) = self.sampled_before(owner, id, number, digest)?
        {
            self.shared().store.write(Change::Nothing).await?;
            return Ok(promise(id, count));
        }
        let (answer, job) = {
            let mut registry = self.registry();
            let weights = self.weights_for(&mut registry, owner, &request)?;
            let request = read_request(request, seed)?;
            let permit = weights.base.sample_permit()?;
            let feed = sampler.as_ref().zip(number);
            let feed = feed.map(|(sampler, number)| Feed::of_request(sampler, number));
            let answer = self.shared().results.promise(owner, feed);
            if let (Some(id), Some(number)) = (&sampler, number) {
                if registry.sampler(owner, id)?.requests.get(&number).is_some() {
                    // It came twice at the same moment; a repeat finds the first one.
                    return Err(ApiError::busy("the same request is being accepted"));
                }
                let promised = Promised {
                    id: answer.id().clone(),
                    digest,
                };
                registry
                    .sampler(owner, id)?
                    .requests
                    .insert(number, promised);
            }
            (answer, (weights, request, permit))
        };
        let id = answer.id().clone();
        let change = Change::Request(Box::new(NewRequest {
            id: id.clone(),
            owner,
            kind: Kind::Sample.name(),
            subject: sampler
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
            number: number.map(u64::cast_signed),
            digest,
            seed,
            accepted: Timestamp::now(),
            body,
            outcome: None,
            also: Vec::new(),
        }));
        let server = self.clone();
        // Goes on if the client hangs up: the number is taken.
        let accepting = tokio::spawn(async move {
            if let Err(error) = server.shared().store.write(change).await {
                if let (Some(id), Some(number)) = (&sampler, number)
                    && let Ok(sampler) = server.registry().sampler(owner, id)
                {
                    sampler.requests.remove(&number);
                }
                server.shared().results.withdraw(answer.id());
                return Err(ApiError::from(error));
            }
            let (weights, request, permit) = job;
            server.send_sample(owner, weights, request, answer, Some(permit));
            Ok(())
        });
        let accepted = accepting.await;
        accepted.map_err(|_| ApiError::unavailable("the server is stopping"))??;
        Ok(promise(id, count))
    }

    /// Finds the request that has a number already, if it is the same request.
    fn sampled_before(
        &self,
        owner: Owner,
        sampler: &SamplingSessionId,
        number: u64,
        digest: Digest,
    ) -> Result<Option<RequestId>, ApiError> {
        let mut registry = self.registry();
        match registry.open_sampler(owner, sampler)?.requests.get(&number) {
            None => Ok(None),
            Some(known) if known.digest == digest => Ok(Some(known.id.clone())),
            Some(_) => Err(ApiError::bad_request(format!(
                "`seq_id`: {number} was used for a request with another body"
            ))),
        }
    }

    fn send_sample(
        &self,
        owner: Owner,
        weights: Weights,
        request: sample::SampleRequest,
        answer: Answer,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let adapter = weights.adapter.as_deref();
        weights.base.send(Command::Sample(SampleJob {
            owner,
            session: weights.session,
            adapter: adapter.map(|folder| self.shared().checkpoints.folder(folder)),
            request,
            answer,
            permit,
            watcher: weights.watcher,
        }));
    }

    /// Queues a request that was accepted before this process began.
    pub(crate) fn sample_again(
        &self,
        owner: Owner,
        request: SampleRequest,
        seed: u64,
        answer: Answer,
    ) {
        let weights = self.weights_for(&mut self.registry(), owner, &request);
        let request = weights.and_then(|weights| Ok((weights, read_request(request, seed)?)));
        match request {
            Ok((weights, request)) => {
                self.send_sample(owner, weights, request, answer, None);
            }
            Err(refusal) => answer.finish(Outcome::user_error(refusal.detail())),
        }
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

fn read_request(request: SampleRequest, seed: u64) -> Result<sample::SampleRequest, InvalidInput> {
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
        fallback_seed: seed,
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
