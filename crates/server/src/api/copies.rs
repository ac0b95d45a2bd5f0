//! Copies of checkpoints: they share the files of their source, and live on their own.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use jiff::Timestamp;
use tinkrs_types::protocol::check_ttl;
use tinkrs_types::rest::CopiedWeights;
use tinkrs_types::{CheckpointKind, ModelId, SessionId, TinkerPath};
use tinkrs_wire::header as names;
use tinkrs_wire::op::copy_weights::CopyWeightsRequest;

use super::{Plain, check_project, sessions::uuid};
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded};
use crate::queue::digest;
use crate::record::{RunRecord, SessionRecord};
use crate::registry::{Run, Session};
use crate::store::Change;

pub(crate) async fn copy(
    State(server): State<Server>,
    Caller(owner): Caller,
    headers: HeaderMap,
    Decoded(request): Decoded<CopyWeightsRequest>,
) -> Result<Plain<CopiedWeights>, ApiError> {
    if headers.contains_key("x-tinker-weights-access-token") {
        return Err(ApiError::bad_request(
            "`X-Tinker-Weights-Access-Token`: this server makes no such tokens; publish the checkpoint \
             instead",
        ));
    }
    let key = headers.get(names::IDEMPOTENCY_KEY);
    let session = match key {
        Some(key) => session_of_key(owner, key.as_bytes()),
        None => SessionId::new(uuid()),
    };
    server
        .copy_weights(owner, session, request)
        .await
        .map(Plain)
}

impl Server {
    async fn copy_weights(
        &self,
        owner: Owner,
        session: SessionId,
        request: CopyWeightsRequest,
    ) -> Result<CopiedWeights, ApiError> {
        if let Some(project) = &request.destination_project_id {
            check_project(project.as_str())?;
        }
        if request.session_id.is_some() || request.model_seq_id.is_some() {
            return Err(ApiError::bad_request(
                "`session_id` and `model_seq_id`: a copy gets a session of its own",
            ));
        }
        if request.weights_access_token.is_some() {
            return Err(ApiError::bad_request(
                "`weights_access_token`: this server makes no such tokens; publish the checkpoint instead",
            ));
        }
        request.ttl_seconds.map(check_ttl).transpose()?;
        let source = request.source_path;
        if source.kind() == CheckpointKind::External {
            return Err(ApiError::bad_request(
                "`source_path`: expected a training or sampler checkpoint",
            ));
        }
        let (store, checkpoints) = (&self.shared().store, &self.shared().checkpoints);
        let run = ModelId::in_session(&session, 0);
        let path = TinkerPath::new(run.clone(), source.kind(), source.name())?;
        let found = self.checkpoint(owner, &source);
        if let Some(copy) = checkpoints.find_own(owner, &path) {
            if found.is_ok_and(|source| source.folder != copy.folder) {
                return Err(ApiError::bad_request(format!(
                    "`X-Idempotency-Key` was used for `{path}`, a copy of another checkpoint"
                )));
            }
            store.write(Change::Nothing).await?;
            return Ok(CopiedWeights::new(path));
        }
        let mut saved = found?;
        let now = Timestamp::now();
        let ttl = request.ttl_seconds.map(Duration::from_secs);
        saved.owner = owner;
        saved.checkpoint.tinker_path = path.clone();
        saved.checkpoint.time = now;
        saved.checkpoint.public = false;
        saved.checkpoint.expires_at = ttl.and_then(|ttl| now.checked_add(ttl).ok());

        let session = SessionRecord::holding(session, owner, format!("copy of {source}"));
        let run = RunRecord::holding(&session, &saved.info, "it holds a copy of a checkpoint");
        // In memory first: the source may be deleted at any moment, and its files must stay then.
        if !checkpoints.add_copy(&source, saved.clone()) {
            return Err(ApiError::not_found(format!(
                "there is no checkpoint `{source}`"
            )));
        }
        {
            let mut registry = self.registry();
            let runs = &mut registry.runs;
            runs.insert(run.id.clone(), Run::new(run.clone(), 1));
            let sessions = &mut registry.sessions;
            sessions.insert(session.id.clone(), Session::new(session.clone()));
        }
        let (session_id, run_id) = (session.id.clone(), run.id.clone());
        let (replaced, is_new) = (None, true);
        let change = Change::Together(vec![
            Change::Session(session),
            Change::Run {
                record: run,
                is_new,
            },
            Change::Checkpoint { saved, replaced },
        ]);
        let written = store.write(change).await;
        if let Err(error) = written {
            drop(checkpoints.take(|saved| *saved.path() == path));
            let mut registry = self.registry();
            registry.runs.remove(&run_id);
            registry.sessions.remove(&session_id);
            return Err(error.into());
        }
        self.remember(owner, "checkpoint_copy", &source);
        Ok(CopiedWeights::new(path))
    }
}

/// A repeated request gets the copy that the first one made: its session follows from its key.
pub(super) fn session_of_key(owner: Owner, key: &[u8]) -> SessionId {
    let text = [owner.to_string().as_bytes(), b"\n", key].concat();
    let hex: String = digest(&text)[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    SessionId::new(format!("copy-{hex}"))
}
