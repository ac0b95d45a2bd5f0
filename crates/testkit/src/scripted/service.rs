//! Configuration, credentials and sessions.

use super::reply::{Reply, refuse};
use super::{BASE_MODEL, Recorded, Shared, State};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::json;
use tinkrs_types::protocol::TelemetryBatch;
use tinkrs_types::service::{ServerCapabilities, SupportedModel};
use tinkrs_types::{SessionId, Timestamp};
use tinkrs_wire::Body;
use tinkrs_wire::op::auth_token::AuthTokenResponse;
use tinkrs_wire::op::create_session::{CreateSessionRequest, CreateSessionResponse};
use tinkrs_wire::op::finish_session::FinishSessionRequest;
use tinkrs_wire::op::session_heartbeat::{SessionHeartbeatRequest, SessionHeartbeatResponse};

/// A client's session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Session {
    finished: bool,
}

impl State {
    /// Refuses what is asked in a session that does not exist or is finished.
    pub(super) fn check_session(&self, id: &SessionId) -> Result<(), Reply> {
        match self.sessions.get(id) {
            Some(session) if !session.finished => Ok(()),
            Some(_) => Err(refuse(403, "the session is finished")),
            None => Err(refuse(403, "Invalid session_id")),
        }
    }

    /// Refuses credentials that are none.
    pub(super) fn check_key(&self, request: &Recorded) -> Result<(), Reply> {
        let key = request.key().unwrap_or("");
        let by_key = ["client_config", "auth_token"].contains(&request.endpoint);
        let accepted = if self.config.pjwt_auth_enabled && !by_key {
            self.tokens.iter().any(|token| token == key)
        } else {
            key.starts_with("tml-") || key.starts_with("eyJ")
        };
        if accepted {
            Ok(())
        } else {
            Err(refuse(401, "invalid credential"))
        }
    }
}

/// `client_config`
pub(super) fn client_config(shared: &Shared) -> Reply {
    Reply::json(&shared.state().config)
}

/// `dynamic_config`
pub(super) fn dynamic_config(shared: &Shared) -> Reply {
    Reply::json(&shared.state().dynamic_config)
}

/// `auth_token`: each token is new.
pub(super) fn auth_token(shared: &Shared) -> Reply {
    let mut state = shared.state();
    let expires = Timestamp::now().as_second() + state.token_lifetime.as_secs().cast_signed();
    let header = BASE64.encode(json!({"alg": "none", "typ": "JWT"}).to_string());
    let claims = json!({
        "sub": "tml:organization_user:tester", "org_id": "test-org", "email": "tester@example.com",
        "iss": "passport-test", "exp": expires, "number": state.next("token"),
    });
    let jwt = format!("{header}.{}.", BASE64.encode(claims.to_string()));
    state.tokens.push(jwt.clone());
    Reply::json(&AuthTokenResponse { jwt })
}

/// `get_server_capabilities`
pub(super) fn get_server_capabilities() -> Reply {
    let mut model = SupportedModel::default();
    model.model_name = Some(BASE_MODEL.to_owned());
    model.max_context_length = Some(32_768);
    model.trainable = Some(true);
    model.sampleable = Some(true);
    Reply::json(&ServerCapabilities::new(vec![model]))
}

/// `create_session`
pub(super) fn create_session(shared: &Shared, request: &Recorded) -> Reply {
    if CreateSessionRequest::decode(&request.body).is_err() {
        return refuse(400, "not a request for a session");
    }
    let mut state = shared.state();
    let session_id = SessionId::new(format!("session-{}", state.next("session")));
    state
        .sessions
        .insert(session_id.clone(), Session::default());
    let response = CreateSessionResponse {
        session_id,
        info_message: None,
        warning_message: None,
        error_message: None,
    };
    Reply::json(&response)
}

/// `session_heartbeat`
pub(super) fn session_heartbeat(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = SessionHeartbeatRequest::decode(&request.body) else {
        return refuse(400, "not a heartbeat");
    };
    match shared.state().sessions.get(&body.session_id) {
        Some(session) if session.finished => refuse(410, "the session is finished"),
        Some(_) => Reply::json(&SessionHeartbeatResponse::default()),
        None => refuse(404, "no such session"),
    }
}

/// `finish_session`
pub(super) fn finish_session(shared: &Shared, request: &Recorded) -> Reply {
    if FinishSessionRequest::decode(&request.body).is_err() {
        return refuse(400, "not an end of a session");
    }
    let id = SessionId::new(request.ids[0].clone());
    let mut state = shared.state();
    let Some(session) = state.sessions.get_mut(&id) else {
        return refuse(404, "no such session");
    };
    session.finished = true;
    Reply::json(&json!({}))
}

/// `telemetry`
pub(super) fn telemetry(shared: &Shared, request: &Recorded) -> Reply {
    if let Err(error) = TelemetryBatch::decode(&request.body) {
        shared.complain(format!("telemetry: {error:?}"));
        return refuse(422, "not telemetry");
    }
    Reply::json(&json!({"status": "accepted"}))
}
