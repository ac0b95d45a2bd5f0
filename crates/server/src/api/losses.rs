//! Losses that clients upload.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tinkrs_types::protocol::Promise;
use tinkrs_types::{LossId, RequestId, SessionId};
use tinkrs_wire::op::create_custom_loss::{CreateCustomLossRequest, CreateCustomLossResult};

use super::Plain;
use crate::Server;
use crate::auth::Owner;
use crate::custom_loss::CustomLoss;
use crate::error::ApiError;
use crate::extract::{Caller, Json};
use crate::lock::lock;
use crate::outcome::Outcome;
use crate::queue::digest;
use crate::registry::Promised;
use crate::request::{Kind, read_json};
use crate::store::{Change, Digest, NewRequest};

pub(crate) async fn create(
    State(server): State<Server>,
    Caller(owner): Caller,
    Json(body): Json,
) -> Result<Plain<Promise>, ApiError> {
    let request = read_json(&body)?;
    server.create_loss(owner, request, body).await.map(Plain)
}

/// A loss as it is stored.
#[derive(Serialize, Deserialize)]
struct LossRecord {
    owner: Owner,
    request: CreateCustomLossRequest,
}

/// A loss that passes may name.
#[derive(Debug)]
pub(crate) struct Uploaded {
    owner: Owner,
    session: SessionId,
    loss: Arc<CustomLoss>,
}

impl Server {
    /// Keeps a loss, unless it was uploaded before. Its result is there at once.
    async fn create_loss(
        &self,
        owner: Owner,
        request: CreateCustomLossRequest,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let digest = digest(&body);
        let (session, number) = (request.session_id.clone(), request.custom_loss_seq_id);
        if let Some(id) = self.uploaded_before(owner, &session, number, digest)? {
            self.shared().store.write(Change::Nothing).await?;
            return Ok(promise(id));
        }
        let loss_id = LossId::new(format!("{session}:loss:{number}"));
        let loss = CustomLoss::new(&request.name, &request.inputs, &request.graph)?;
        let answer = self.shared().results.promise(owner, None);
        let id = answer.id().clone();
        let outcome = Outcome::body(&CreateCustomLossResult {
            loss_id: loss_id.clone(),
        });
        let record = LossRecord { owner, request };
        let record = serde_json::to_string(&record).expect("graphs have text keys");
        let change = Change::Request(Box::new(NewRequest {
            id: id.clone(),
            owner,
            kind: Kind::CreateCustomLoss.name(),
            subject: session.to_string(),
            number: Some(number.cast_signed()),
            digest,
            seed: 0,
            accepted: Timestamp::now(),
            body: Bytes::new(),
            outcome: Some(outcome.clone()),
            also: vec![Change::Loss {
                id: loss_id.to_string(),
                record,
            }],
        }));
        self.shared().store.write(change).await?;
        let uploaded = Uploaded {
            owner,
            session: session.clone(),
            loss: Arc::new(loss),
        };
        let mut registry = self.registry();
        match registry.session(owner, &session) {
            Ok(session) if session.is_open() => {
                let id = id.clone();
                session.losses.insert(number, Promised { id, digest });
                lock(&self.shared().losses).insert(loss_id, uploaded);
            }
            // The session was finished meanwhile, and took the other losses along.
            _ => self
                .shared()
                .store
                .note(Change::LossGone(loss_id.to_string())),
        }
        drop(registry);
        answer.show_stored(outcome);
        Ok(promise(id))
    }

    fn uploaded_before(
        &self,
        owner: Owner,
        session: &SessionId,
        number: u64,
        digest: Digest,
    ) -> Result<Option<RequestId>, ApiError> {
        let mut registry = self.registry();
        match registry.open_session(owner, session)?.losses.get(&number) {
            None => Ok(None),
            Some(known) if known.digest == digest => Ok(Some(known.id.clone())),
            Some(_) => Err(ApiError::bad_request(format!(
                "`custom_loss_seq_id`: {number} was used for another loss"
            ))),
        }
    }

    /// Finds a loss that an owner uploaded.
    pub(crate) fn loss(&self, owner: Owner, id: &LossId) -> Result<Arc<CustomLoss>, ApiError> {
        let losses = lock(&self.shared().losses);
        let found = losses.get(id).filter(|uploaded| uploaded.owner == owner);
        found
            .map(|uploaded| Arc::clone(&uploaded.loss))
            .ok_or_else(|| {
                ApiError::bad_request(format!("`loss_id`: found `{id}`, which was never uploaded"))
            })
    }

    /// Knows a loss again after a restart.
    pub(crate) fn recover_loss(&self, id: String, record: &str) {
        let rebuilt = serde_json::from_str(record)
            .map_err(|error| error.to_string())
            .and_then(|LossRecord { owner, request }| {
                let loss = CustomLoss::new(&request.name, &request.inputs, &request.graph);
                let loss = loss.map_err(|error| error.to_string())?;
                Ok(Uploaded {
                    owner,
                    session: request.session_id,
                    loss: Arc::new(loss),
                })
            });
        match rebuilt {
            Ok(uploaded) => {
                lock(&self.shared().losses).insert(LossId::new(id), uploaded);
            }
            Err(error) => tracing::error!(loss.id = id, error, "lost an uploaded loss"),
        }
    }

    /// Forgets the losses of a session.
    pub(crate) fn forget_losses(&self, session: &SessionId) {
        let mut losses = lock(&self.shared().losses);
        for (id, _) in losses.extract_if(|_, uploaded| uploaded.session == *session) {
            self.shared().store.note(Change::LossGone(id.to_string()));
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
