//! Sampling sessions and samples.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use tinkrs_types::protocol::Promise;
use tinkrs_types::rest::SamplerInfo;
use tinkrs_types::{
    CheckpointKind, RequestId, SamplingSessionId, SequenceId, SessionId, TinkerPath,
};
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::op::create_sampling_session::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse,
};
use tinkrs_wire::op::join_sampling_session::{
    JoinSamplingSessionRequest, JoinSamplingSessionResponse,
};

use super::{Plain, Tagged};
use crate::Server;
use crate::accept::{AcceptOnce, Claimed, Submission};
use crate::auth::Owner;
use crate::body::{json_bytes, read_json};
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, InPath};
use crate::intake::{Held, SMALL, Upload};
use crate::operations::sample::{SAMPLE, WaitingSample};
use crate::places::QueuePlace;
use crate::registry::records::SamplerRecord;
use crate::registry::{Registry, Sampler};
use crate::results::completion_feed::CompletionFeed;
use crate::results::{OperationResult, Responder, SampleReply};
use crate::state::Base;
use crate::store::Change;
use crate::waiting::Room;
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
    body: Upload,
) -> Result<Plain<Promise>, ApiError> {
    let read = {
        let server = server.clone();
        move |body| NewSample::read(server.shared().room(owner), body)
    };
    let (mut sample, held) = body.decode(&server, json_bytes, read).await?;
    sample.submission.held = held;
    server.accept_once(sample).await.map(Plain)
}

/// What is sampled from.
pub(crate) struct Weights {
    pub(crate) base: Arc<Base>,
    /// In the data folder; `None` for the base model itself.
    pub(crate) adapter: Option<PathBuf>,
    pub(crate) path: Option<TinkerPath>,
    session: Option<SessionId>,
    /// The sampling session, if the request names one.
    sampler: Option<SamplingSessionId>,
}

/// What a request names to be sampled from.
pub(crate) struct SampleSource {
    sampler: Option<SamplingSessionId>,
    base_model: Option<String>,
    model_path: Option<String>,
}

impl SampleSource {
    pub(crate) fn of(request: &SampleRequest) -> Self {
        Self {
            sampler: request.sampling_session_id.clone(),
            base_model: request.base_model.clone(),
            model_path: request.model_path.clone(),
        }
    }
}

impl Server {
    /// Opens a sampling session, unless it was opened before.
    async fn create_sampling_session(
        &self,
        owner: Owner,
        request: &CreateSamplingSessionRequest,
    ) -> Result<SamplingSessionId, ApiError> {
        let (name, path) = (request.base_model.as_deref(), request.model_path.as_deref());
        let weights = self.weights(&self.registry(), owner, name, path)?;
        let seq_id = request.sampling_session_seq_id;
        self.accept_once(OpenSampler(SamplerRecord {
            id: SamplingSessionId::in_session(&request.session_id, seq_id),
            owner,
            session: request.session_id.clone(),
            base_model: weights.base.name.clone(),
            adapter: weights.adapter,
            path: weights.path,
            clones: 0,
            of_run: None,
            bytes: 0,
        }))
        .await
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
    pub(crate) fn weights(
        &self,
        registry: &Registry,
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
                sampler: None,
            }),
            (base_model, Some(path)) => {
                let path =
                    self.checkpoint_path(registry, owner, path, &[CheckpointKind::Sampler])?;
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
                    sampler: None,
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
        source: &SampleSource,
    ) -> Result<Weights, ApiError> {
        let (name, path) = (source.base_model.as_deref(), source.model_path.as_deref());
        match &source.sampler {
            None => self.weights(registry, owner, name, path),
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
                    sampler: Some(id.clone()),
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
        let base = self.bases().get(&record.base_model);
        let (name, path) = (record.base_model.clone(), record.path.clone());
        let mut info = SamplerInfo::new(sampler_id, name, path);
        info.tokenizer_id = base.and_then(|base| base.tokenizer_id.clone());
        Ok(info)
    }

    fn send_sample(
        &self,
        owner: Owner,
        weights: Weights,
        request: WaitingSample,
        responder: Responder,
        place: Option<QueuePlace>,
    ) {
        let adapter = weights.adapter.as_deref();
        let streams = &self.shared().token_streams;
        let tokens = streams.open(responder.id(), weights.sampler.as_ref());
        weights.base.send(Command::Sample(SampleJob {
            owner,
            session: weights.session,
            adapter: adapter.map(|folder| self.shared().checkpoints.folder(folder)),
            request,
            is_suspect: self.shared().under_way.is_suspect(responder.id()),
            reply: SampleReply::Promised(responder),
            place,
            tokens,
        }));
    }

    /// Queues a request that was accepted before this process began.
    pub(crate) fn sample_again(
        &self,
        owner: Owner,
        (source, request): (SampleSource, WaitingSample),
        responder: Responder,
    ) {
        let weights = self.weights_for(&mut self.registry(), owner, &source);
        if let Ok(weights) = &weights {
            let under_way = &self.shared().under_way;
            under_way.suspect_sample(&weights.base.name, responder.id());
            if let Some(why) = under_way.poison(responder.id(), false) {
                responder.finish(OperationResult::server_error(why));
                return;
            }
        }
        match weights {
            Ok(weights) => self.send_sample(owner, weights, request, responder, None),
            Err(refusal) => responder.finish(OperationResult::user_error(refusal.detail())),
        }
    }
}

/// A request for a sampling session, as it will be.
struct OpenSampler(SamplerRecord);

impl AcceptOnce for OpenSampler {
    type Reply = SamplingSessionId;
    type Claimed = Self;

    fn check(&self, _: &Server, registry: &mut Registry) -> Result<(), ApiError> {
        registry.open_session(self.0.owner, &self.0.session)?;
        Ok(())
    }

    fn seen(
        &self,
        _: &Server,
        registry: &mut Registry,
    ) -> Result<Option<SamplingSessionId>, ApiError> {
        let new = &self.0;
        let Some(known) = registry.find_sampler(new.owner, &new.id)? else {
            return Ok(None);
        };
        let known = &known.record;
        let is_same = known.base_model == new.base_model
            && known.path == new.path
            && known.adapter.is_some() == new.adapter.is_some();
        if !is_same {
            return Err(ApiError::bad_request(format!(
                "`sampling_session_seq_id`: `{}` is a session with other weights",
                new.id
            )));
        }
        Ok(Some(new.id.clone()))
    }

    fn claim(self, _: &Server, registry: &mut Registry) -> Result<(Change, Self), ApiError> {
        let sampler = Sampler::new(self.0.clone());
        registry.samplers.insert(self.0.id.clone(), sampler);
        Ok((Change::Sampler(self.0.clone()), self))
    }
}

impl Claimed for OpenSampler {
    type Reply = SamplingSessionId;

    fn commit(self, _: &Server, _: &mut Registry) -> Result<SamplingSessionId, ApiError> {
        Ok(self.0.id)
    }

    fn roll_back(self, _: &Server, registry: &mut Registry) {
        registry.samplers.remove(&self.0.id);
    }
}

/// A request for samples.
struct NewSample {
    submission: Submission,
    /// The sampling session and the sequence id, for a request that has both.
    key: Option<(SamplingSessionId, u64)>,
    source: SampleSource,
    request: WaitingSample,
}

/// A request for samples whose sequence id is claimed.
struct ClaimedSample {
    owner: Owner,
    key: Option<(SamplingSessionId, u64)>,
    responder: Responder,
    weights: Weights,
    request: WaitingSample,
    place: QueuePlace,
    _held: Held,
}

impl NewSample {
    /// Reads a request, which waits in this room.
    fn read(room: Room<'_>, body: Bytes) -> Result<Self, ApiError> {
        let request: SampleRequest = read_json(&body)?;
        let source = SampleSource::of(&request);
        let subject = source.sampler.as_ref().map(ToString::to_string);
        let mut submission = Submission::new(room.owner, SAMPLE, subject.unwrap_or_default(), body);
        submission.seed = fastrand::u64(..);
        let key = source.sampler.clone().zip(request.seq_id);
        submission.seq_id = key.as_ref().map(|(_, seq_id)| seq_id.cast_signed());
        let request = WaitingSample::new(request, submission.seed, submission.digest, room)?;
        Ok(Self {
            submission,
            key,
            source,
            request,
        })
    }
}

impl AcceptOnce for NewSample {
    type Reply = Promise;
    type Claimed = ClaimedSample;

    fn check(&self, _: &Server, registry: &mut Registry) -> Result<(), ApiError> {
        if let Some((sampler, _)) = &self.key {
            registry.open_sampler(self.submission.owner, sampler)?;
        }
        Ok(())
    }

    fn seen(&self, _: &Server, registry: &mut Registry) -> Result<Option<Promise>, ApiError> {
        let Some((sampler, seq_id)) = &self.key else {
            return Ok(None);
        };
        let sampler = registry.sampler(self.submission.owner, sampler)?;
        let id = self.submission.repeats(sampler.requests.get(seq_id))?;
        Ok(id.map(|id| promise(id, self.request.num_samples)))
    }

    fn claim(
        self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<(Change, ClaimedSample), ApiError> {
        let Self {
            submission,
            key,
            source,
            request,
        } = self;
        let owner = submission.owner;
        let weights = server.weights_for(registry, owner, &source)?;
        let place = weights.base.sample_place(owner)?;
        if request.is_in_journal()
            && submission.body.len() > SMALL
            && server.shared().waiting.has_some(owner)
        {
            return Err(ApiError::busy(
                "too many bytes of samples of this key are waiting",
            ));
        }
        let feed = key.as_ref();
        let feed = feed.map(|(sampler, seq_id)| CompletionFeed::of_request(sampler, *seq_id));
        let responder = server.shared().results.promise(owner, feed);
        if let Some((sampler, seq_id)) = &key {
            let requests = &mut registry.sampler(owner, sampler)?.requests;
            requests.insert(*seq_id, submission.promised(&responder));
        }
        let change = submission.journal(&responder, None, Vec::new());
        let claimed = ClaimedSample {
            owner,
            key,
            responder,
            weights,
            request,
            place,
            _held: submission.held,
        };
        Ok((change, claimed))
    }
}

impl Claimed for ClaimedSample {
    type Reply = Promise;

    fn commit(self, server: &Server, _: &mut Registry) -> Result<Promise, ApiError> {
        let promise = promise(self.responder.id().clone(), self.request.num_samples);
        let place = Some(self.place);
        server.send_sample(
            self.owner,
            self.weights,
            self.request,
            self.responder,
            place,
        );
        Ok(promise)
    }

    fn roll_back(self, server: &Server, registry: &mut Registry) {
        server.shared().results.withdraw(self.responder.id());
        if let Some((sampler, seq_id)) = &self.key
            && let Ok(sampler) = registry.sampler(self.owner, sampler)
        {
            sampler.requests.remove(seq_id);
        }
    }
}

/// Sequence ids are made of the request's: a repeated request gets the same ones.
fn promise(request_id: RequestId, count: u32) -> Promise {
    let sequence = |index| SequenceId::new(format!("{request_id}-{index}"));
    Promise {
        sample_sequence_ids: Some((0..count).map(sequence).collect()),
        model_id: None,
        request_id,
    }
}
