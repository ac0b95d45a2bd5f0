//! The losses that clients have uploaded, by their ids.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tinkrs_types::{LossId, SessionId};
use tinkrs_wire::op::create_custom_loss::CreateCustomLossRequest;

use crate::Server;
use crate::auth::Owner;
use crate::custom_loss::CompiledLoss;
use crate::error::ApiError;
use crate::lock::lock;
use crate::places::QueuePlace;
use crate::store::Change;

/// A loss as it is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct LossRecord {
    pub(crate) owner: Owner,
    pub(crate) request: CreateCustomLossRequest,
}

/// A loss that passes may name.
#[derive(Debug)]
pub(crate) struct UploadedLoss {
    pub(crate) owner: Owner,
    pub(crate) session: SessionId,
    pub(crate) loss: Arc<CompiledLoss>,
    /// The place of its bytes; `None` if there was none left for it after a restart.
    pub(crate) _memory: Option<QueuePlace>,
}

/// Estimates how much memory a loss takes, from its JSON: its text, and each of its values.
pub(crate) fn bytes_of(json: &[u8]) -> usize {
    let values = json.iter().filter(|byte| **byte == b',').count();
    4 * json.len() + 32 * values
}

impl Server {
    /// Finds a loss that an owner uploaded.
    pub(crate) fn loss(&self, owner: Owner, id: &LossId) -> Result<Arc<CompiledLoss>, ApiError> {
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
        let room = &self.shared().loss_room;
        let rebuilt = serde_json::from_str(record)
            .map_err(|error| error.to_string())
            .and_then(|LossRecord { owner, request }| {
                let loss = CompiledLoss::new(&request.name, &request.inputs, &request.graph);
                let loss = loss.map_err(|error| error.to_string())?;
                Ok(UploadedLoss {
                    owner,
                    session: request.session_id,
                    loss: Arc::new(loss),
                    _memory: room.take(owner, bytes_of(record.as_bytes())),
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
