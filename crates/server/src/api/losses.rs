//! Losses that clients upload.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use tinkrs_types::protocol::Promise;
use tinkrs_types::{LossId, RequestId};
use tinkrs_wire::op::create_custom_loss::{CreateCustomLossRequest, CreateCustomLossResult};

use super::Plain;
use crate::Server;
use crate::accept::{AcceptOnce, Claimed, Submission};
use crate::auth::Owner;
use crate::body::{json_bytes, read_json};
use crate::custom_loss::CompiledLoss;
use crate::error::ApiError;
use crate::extract::Caller;
use crate::intake::{Held, Upload};
use crate::lock::lock;
use crate::memory::Size;
use crate::registry::Registry;
use crate::results::{OperationResult, Responder};
use crate::store::Change;
use crate::uploaded_losses::{LossRecord, UploadedLoss, bytes_of};

pub(crate) async fn create(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Upload,
) -> Result<Plain<Promise>, ApiError> {
    let read = |body: Bytes| Ok((read_json(&body)?, body));
    let ((request, body), held) = body.decode(&server, json_bytes, read).await?;
    let promise = server.create_loss(owner, request, (body, held));
    promise.await.map(Plain)
}

impl Server {
    /// Keeps a loss, unless it was uploaded before. Its result is there at once.
    async fn create_loss(
        &self,
        owner: Owner,
        request: CreateCustomLossRequest,
        (body, held): (Bytes, Held),
    ) -> Result<Promise, ApiError> {
        let subject = request.session_id.to_string();
        let mut submission = Submission::new(owner, CREATE_CUSTOM_LOSS, subject, body);
        submission.held = held;
        let bytes = bytes_of(&submission.body);
        submission.seq_id = Some(request.custom_loss_seq_id.cast_signed());
        // The record has all of it, and nothing waits for the body.
        submission.body = Bytes::new();
        let loss = CompiledLoss::new(&request.name, &request.inputs, &request.graph);
        self.accept_once(UploadLoss {
            submission,
            loss: loss.map_err(ApiError::from),
            request,
            bytes,
        })
        .await
    }
}

/// What the upload of a loss is called in the journal.
const CREATE_CUSTOM_LOSS: &str = "create_custom_loss";

/// The upload of a loss.
struct UploadLoss {
    submission: Submission,
    request: CreateCustomLossRequest,
    /// What was read of it, or what is wrong with it.
    loss: Result<CompiledLoss, ApiError>,
    /// What it takes in memory, about.
    bytes: usize,
}

/// A loss whose sequence id is claimed.
struct ClaimedLoss {
    uploaded: UploadedLoss,
    loss_id: LossId,
    seq_id: u64,
    responder: Responder,
    outcome: OperationResult,
    _held: Held,
}

impl AcceptOnce for UploadLoss {
    type Reply = Promise;
    type Claimed = ClaimedLoss;

    fn check(&self, _: &Server, registry: &mut Registry) -> Result<(), ApiError> {
        registry.open_session(self.submission.owner, &self.request.session_id)?;
        Ok(())
    }

    fn seen(&self, _: &Server, registry: &mut Registry) -> Result<Option<Promise>, ApiError> {
        let (session, seq_id) = (&self.request.session_id, self.request.custom_loss_seq_id);
        let session = registry.session(self.submission.owner, session)?;
        match self.submission.repeats(session.losses.get(&seq_id)) {
            Ok(id) => Ok(id.map(promise)),
            Err(_) => Err(ApiError::bad_request(format!(
                "`custom_loss_seq_id`: {seq_id} was used for another loss"
            ))),
        }
    }

    fn claim(
        self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<(Change, ClaimedLoss), ApiError> {
        let Self {
            submission,
            request,
            loss,
            bytes,
        } = self;
        let (owner, loss) = (submission.owner, Arc::new(loss?));
        let memory = server.shared().loss_room.take(owner, bytes);
        let memory = memory.ok_or_else(|| {
            ApiError::bad_request(format!(
                "the loss needs {} of memory, and the others of this key have left less of their part: finish \
                 sessions whose losses are not used any more",
                Size(bytes as u64)
            ))
        })?;
        let (session, seq_id) = (request.session_id.clone(), request.custom_loss_seq_id);
        let loss_id = LossId::new(format!("{session}:loss:{seq_id}"));
        let responder = server.shared().results.promise(owner, None);
        let losses = &mut registry.session(owner, &session)?.losses;
        losses.insert(seq_id, submission.promised(&responder));
        let outcome = OperationResult::body(&CreateCustomLossResult {
            loss_id: loss_id.clone(),
        });
        let record = LossRecord { owner, request };
        let record = serde_json::to_string(&record).expect("graphs have text keys");
        let id = loss_id.to_string();
        let also = vec![Change::Loss { id, record }];
        let change = submission.journal(&responder, Some(outcome.clone()), also);
        let claimed = ClaimedLoss {
            uploaded: UploadedLoss {
                owner,
                session,
                loss,
                _memory: Some(memory),
            },
            loss_id,
            seq_id,
            responder,
            outcome,
            _held: submission.held,
        };
        Ok((change, claimed))
    }
}

impl Claimed for ClaimedLoss {
    type Reply = Promise;

    fn commit(self, server: &Server, registry: &mut Registry) -> Result<Promise, ApiError> {
        let promise = promise(self.responder.id().clone());
        let UploadedLoss { owner, session, .. } = &self.uploaded;
        match registry.session(*owner, session) {
            Ok(session) if session.is_open() => {
                lock(&server.shared().losses).insert(self.loss_id, self.uploaded);
            }
            // The session was finished meanwhile, and its other losses are gone.
            _ => {
                let gone = Change::LossGone(self.loss_id.to_string());
                server.shared().store.note(gone);
            }
        }
        self.responder.show_stored(self.outcome);
        Ok(promise)
    }

    fn roll_back(self, server: &Server, registry: &mut Registry) {
        server.shared().results.withdraw(self.responder.id());
        let UploadedLoss { owner, session, .. } = &self.uploaded;
        if let Ok(session) = registry.session(*owner, session) {
            session.losses.remove(&self.seq_id);
        }
    }
}

fn promise(request_id: RequestId) -> Promise {
    Promise {
        request_id,
        model_id: None,
        sample_sequence_ids: None,
    }
}
