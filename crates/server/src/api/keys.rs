//! The caller's own credential.

use axum::extract::State;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_wire::op::auth_token::{AuthTokenRequest, AuthTokenResponse};
use tinkrs_wire::op::get_api_key::ApiKey;

use super::Plain;
use crate::Server;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded};

/// Exchanges a key for a token.
pub(crate) async fn token(
    State(server): State<Server>,
    Caller(owner): Caller,
    _: Decoded<AuthTokenRequest>,
) -> Plain<AuthTokenResponse> {
    let jwt = server.auth().issue(owner, Timestamp::now());
    Plain(AuthTokenResponse { jwt })
}

/// Describes the key that the request is made with.
pub(crate) async fn describe(State(server): State<Server>, Caller(owner): Caller) -> Plain<ApiKey> {
    Plain(server.auth().describe(owner))
}

/// Revokes the key that the request is made with.
pub(crate) async fn revoke(
    State(server): State<Server>,
    Caller(owner): Caller,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    match server.auth().revoke(owner) {
        Ok(()) => Ok(Plain(Map::new())),
        Err(error) => Err(ApiError::unavailable(format!(
            "could not write down that the key is revoked: {error}"
        ))),
    }
}
