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
use crate::accept::{AcceptOnce, Claimed, digest};
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded};
use crate::registry::records::{RunRecord, SessionRecord};
use crate::registry::{Registry, Run, Session};
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
        let kinds = [CheckpointKind::Training, CheckpointKind::Sampler];
        let named = &request.source_path;
        let source = self.checkpoint_path(&self.registry(), owner, named, &kinds)?;
        if source.kind() == CheckpointKind::External {
            return Err(ApiError::bad_request(
                "`source_path`: expected a training or sampler checkpoint",
            ));
        }
        let run = ModelId::in_session(&session, 0);
        let path = TinkerPath::new(run, source.kind(), source.name())?;
        self.accept_once(NewCopy {
            owner,
            session,
            source,
            ttl: request.ttl_seconds.map(Duration::from_secs),
            copied: CopiedWeights::new(path),
        })
        .await
    }
}

/// A request for a copy.
struct NewCopy {
    owner: Owner,
    /// Made of the idempotency key, so a repeat asks for the same copy.
    session: SessionId,
    source: TinkerPath,
    ttl: Option<Duration>,
    copied: CopiedWeights,
}

/// A copy that is listed, with the session and the run that hold it.
struct ClaimedCopy {
    owner: Owner,
    source: TinkerPath,
    session: SessionId,
    run: ModelId,
    copied: CopiedWeights,
}

impl AcceptOnce for NewCopy {
    type Reply = CopiedWeights;
    type Claimed = ClaimedCopy;

    fn seen(&self, server: &Server, _: &mut Registry) -> Result<Option<CopiedWeights>, ApiError> {
        let path = &self.copied.tinker_path;
        let Some(copy) = server.shared().checkpoints.find_own(self.owner, path) else {
            return Ok(None);
        };
        let source = server.checkpoint(self.owner, &self.source);
        if source.is_ok_and(|source| source.folder != copy.folder) {
            return Err(ApiError::bad_request(format!(
                "`X-Idempotency-Key` was used for `{path}`, a copy of another checkpoint"
            )));
        }
        Ok(Some(self.copied.clone()))
    }

    fn claim(
        self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<(Change, ClaimedCopy), ApiError> {
        let Self {
            owner,
            session,
            source,
            ttl,
            copied,
        } = self;
        let mut saved = server.checkpoint(owner, &source)?;
        let now = Timestamp::now();
        saved.owner = owner;
        saved.checkpoint.tinker_path = copied.tinker_path.clone();
        saved.checkpoint.time = now;
        saved.checkpoint.public = false;
        saved.checkpoint.expires_at = ttl.and_then(|ttl| now.checked_add(ttl).ok());

        let session = SessionRecord::holding(session, owner, format!("copy of {source}"));
        let run = RunRecord::holding(&session, &saved.info, "it holds a copy of a checkpoint");
        // In memory first: the source may be deleted at any moment, and its files must stay then.
        if !server.shared().checkpoints.add_copy(&source, saved.clone()) {
            return Err(ApiError::not_found(format!(
                "there is no checkpoint `{source}`"
            )));
        }
        let claimed = ClaimedCopy {
            owner,
            source,
            session: session.id.clone(),
            run: run.id.clone(),
            copied,
        };
        let held = Run::new(run.clone(), 1);
        registry.runs.insert(run.id.clone(), held);
        let held = Session::new(session.clone());
        registry.sessions.insert(session.id.clone(), held);
        let (replaced, is_new) = (None, true);
        let change = Change::Together(vec![
            Change::Session(session),
            Change::Run {
                record: run,
                is_new,
            },
            Change::Checkpoint { saved, replaced },
        ]);
        Ok((change, claimed))
    }
}

impl Claimed for ClaimedCopy {
    type Reply = CopiedWeights;

    fn commit(self, server: &Server, _: &mut Registry) -> Result<CopiedWeights, ApiError> {
        server.remember(self.owner, "checkpoint_copy", &self.source);
        Ok(self.copied)
    }

    fn roll_back(self, server: &Server, registry: &mut Registry) {
        let path = &self.copied.tinker_path;
        drop(
            server
                .shared()
                .checkpoints
                .take(|saved| saved.path() == path),
        );
        registry.runs.remove(&self.run);
        registry.sessions.remove(&self.session);
    }
}

/// A repeated request gets the copy that the first one made: its session follows from its key.
pub(super) fn session_of_key(owner: Owner, key: &[u8]) -> SessionId {
    let text = [owner.to_string().as_bytes(), b"\n", key].concat();
    let hex = tinkrs_wire::text::hex(&digest(&text)[..16]);
    SessionId::new(format!("copy-{hex}"))
}
