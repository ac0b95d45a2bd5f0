//! Sessions: what one client does from start to end.

use axum::extract::State;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_types::session::SessionStatus;
use tinkrs_types::{InvalidInput, SessionId};
use tinkrs_wire::op::create_session::{CreateSessionRequest, CreateSessionResponse};
use tinkrs_wire::op::finish_session::FinishSessionRequest;
use tinkrs_wire::op::session_heartbeat::{SessionHeartbeatRequest, SessionHeartbeatResponse};

use super::models::{check_labels, read_metadata};
use super::{Plain, Tagged, check_project};
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, InPath};
use crate::registry::Session;
use crate::registry::records::SessionRecord;
use crate::store::Change;
use crate::worker::Command;

/// The longest name that a session is shown by.
const NAME_BYTES: usize = 1024;

pub(crate) async fn create(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<CreateSessionRequest>,
) -> Result<Tagged<CreateSessionResponse>, ApiError> {
    server.create_session(owner, request).await.map(Tagged)
}

pub(crate) async fn heartbeat(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<SessionHeartbeatRequest>,
) -> Result<Tagged<SessionHeartbeatResponse>, ApiError> {
    server.heartbeat(owner, &request.session_id)?;
    Ok(Tagged(SessionHeartbeatResponse {}))
}

pub(crate) async fn finish(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(session_id): InPath<String>,
    Decoded(request): Decoded<FinishSessionRequest>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    let id = session_id.into();
    server.registry().session(owner, &id)?;
    server.end_session(
        &id,
        SessionStatus::ClientFinished {
            reason: request.reason,
            detail: request.detail,
        },
    );
    server.shared().store.write(Change::Nothing).await?;
    Ok(Plain(Map::new()))
}

impl Server {
    async fn create_session(
        &self,
        owner: Owner,
        request: CreateSessionRequest,
    ) -> Result<CreateSessionResponse, ApiError> {
        if let Some(project) = &request.project_id {
            check_project(project.as_str())?;
        }
        check_labels("tags", request.tags.iter().map(String::len))?;
        let name = request.display_name.as_deref().unwrap_or_default();
        if name.len() > NAME_BYTES {
            let found = format!("{} bytes", name.len());
            let allowed = format!("at most {NAME_BYTES} bytes");
            return Err(InvalidInput::new("display_name", found, allowed).into());
        }
        let session_id = SessionId::new(uuid());
        let record = SessionRecord {
            id: session_id.clone(),
            owner,
            created_at: Timestamp::now(),
            tags: request.tags,
            user_metadata: read_metadata(request.user_metadata.unwrap_or_default())?,
            display_name: request.display_name,
            sdk_version: request.sdk_version,
            status: SessionStatus::Active,
        };
        let change = Change::Session(record.clone());
        {
            let mut registry = self.registry();
            let limit = self.shared().settings.open_sessions;
            if registry.open_sessions_of(owner) >= limit {
                return Err(ApiError::bad_request(format!(
                    "this key has {limit} open sessions, which is the limit (`open_sessions`): finish some, or wait \
                     until those of clients that are gone have ended"
                )));
            }
            let mut session = Session::new(record);
            session.was_heard = true;
            registry.sessions.insert(session_id.clone(), session);
        }
        if let Err(error) = self.shared().store.write(change).await {
            self.registry().sessions.remove(&session_id);
            return Err(error.into());
        }
        Ok(CreateSessionResponse {
            session_id,
            info_message: None,
            warning_message: None,
            error_message: None,
        })
    }

    fn heartbeat(&self, owner: Owner, id: &SessionId) -> Result<(), ApiError> {
        let mut registry = self.registry();
        if registry.session(owner, id)?.is_open() {
            registry.open_session(owner, id).map(|_| ())
        } else {
            Err(ApiError::gone(format!("session `{id}` is finished")))
        }
    }

    /// Ends a session and frees what it held. The first end counts.
    pub(crate) fn end_session(&self, id: &SessionId, status: SessionStatus) {
        let mut registry = self.registry();
        let Some(session) = registry.sessions.get_mut(id).filter(|s| s.is_open()) else {
            return;
        };
        session.record.status = status;
        let owner = session.record.owner;
        let store = &self.shared().store;
        store.note(Change::Session(session.record.clone()));
        self.forget_losses(id);
        self.free(id, owner);
    }

    /// Frees what a finished session held, after the operations that it has queued.
    pub(crate) fn free(&self, session: &SessionId, owner: Owner) {
        for base in self.bases().values() {
            let session = session.clone();
            base.send(Command::Forget { session, owner });
        }
    }
}

/// A random UUID.
pub(super) fn uuid() -> String {
    tinkrs_wire::text::uuid_v4(fastrand::u128(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_uuid_of_version_4() {
        let id = uuid();
        assert_eq!(id.len(), 36, "{id}");
        assert_eq!(id.as_bytes()[14], b'4', "{id}");
        assert!(b"89ab".contains(&id.as_bytes()[19]), "{id}");
        assert_ne!(id, uuid());
    }
}
