//! Sessions: what one client does from start to end.

use std::collections::HashMap;

use axum::extract::{Path, State};
use serde_json::{Map, Value};
use tinkrs_types::{FinishReason, SessionId};
use tinkrs_wire::op::create_session::{CreateSessionRequest, CreateSessionResponse};
use tinkrs_wire::op::finish_session::FinishSessionRequest;
use tinkrs_wire::op::session_heartbeat::{SessionHeartbeatRequest, SessionHeartbeatResponse};

use super::{Plain, Tagged};
use crate::Server;
use crate::error::Refusal;
use crate::extract::Decoded;
use crate::registry::Session;
use crate::worker::Command;

pub(crate) async fn create(
    State(server): State<Server>,
    Decoded(request): Decoded<CreateSessionRequest>,
) -> Result<Tagged<CreateSessionResponse>, Refusal> {
    server.create_session(&request).map(Tagged)
}

pub(crate) async fn heartbeat(
    State(server): State<Server>,
    Decoded(request): Decoded<SessionHeartbeatRequest>,
) -> Result<Tagged<SessionHeartbeatResponse>, Refusal> {
    server.heartbeat(&request.session_id)?;
    Ok(Tagged(SessionHeartbeatResponse {}))
}

pub(crate) async fn finish(
    State(server): State<Server>,
    Path(session_id): Path<String>,
    Decoded(request): Decoded<FinishSessionRequest>,
) -> Result<Plain<Map<String, Value>>, Refusal> {
    server.finish_session(&session_id.into(), request.reason)?;
    Ok(Plain(Map::new()))
}

impl Server {
    fn create_session(
        &self,
        request: &CreateSessionRequest,
    ) -> Result<CreateSessionResponse, Refusal> {
        if let Some(project) = &request.project_id {
            return Err(Refusal::bad_request(format!(
                "`project_id`: found `{project}`, but this server has no projects"
            )));
        }
        let session_id = SessionId::new(uuid());
        self.registry()
            .sessions
            .insert(session_id.clone(), Session::default());
        Ok(CreateSessionResponse {
            session_id,
            info_message: None,
            warning_message: None,
            error_message: None,
        })
    }

    fn heartbeat(&self, id: &SessionId) -> Result<(), Refusal> {
        match self.registry().session(id)?.finished {
            None => Ok(()),
            Some(_) => Err(Refusal::gone(format!("session `{id}` is finished"))),
        }
    }

    /// Ends a session and frees what it held, after the operations that it has queued. The first
    /// reason counts.
    fn finish_session(&self, id: &SessionId, reason: FinishReason) -> Result<(), Refusal> {
        let mut registry = self.registry();
        let session = registry.session(id)?;
        if session.finished.is_some() {
            return Ok(());
        }
        session.finished = Some(reason);
        let mut unused = HashMap::<_, (Vec<_>, Vec<_>)>::new();
        for (model, run) in registry.runs.iter().filter(|(_, run)| run.session == *id) {
            let (models, _) = unused.entry(run.base.name.clone()).or_default();
            models.push(model.clone());
        }
        for sampler in registry.samplers.values().filter(|s| s.session == *id) {
            let (_, adapters) = unused.entry(sampler.weights.base.name.clone()).or_default();
            adapters.extend(sampler.own_folder());
        }
        for (base, (models, adapters)) in unused {
            self.base(&base)?.send(Command::Forget { models, adapters });
        }
        Ok(())
    }
}

/// A random UUID.
fn uuid() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
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
