//! What can be done with a checkpoint that exists.

use std::time::Duration;

use axum::extract::State;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_types::protocol::check_ttl;
use tinkrs_types::rest::Checkpoint;
use tinkrs_types::{CheckpointKind, ModelId, TinkerPath};
use tinkrs_wire::op::set_checkpoint_ttl::SetCheckpointTtlRequest;

use super::Plain;
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, InPath};

/// The segments of a checkpoint's address.
pub(super) type Address = (String, String, String);

pub(crate) async fn delete(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    let path = read_address(address)?;
    let checkpoints = &server.shared().checkpoints;
    let missing = || ApiError::not_found(format!("there is no checkpoint `{path}`"));
    let saved = checkpoints.find_own(owner, &path).ok_or_else(missing)?;
    let taken = checkpoints.take(|saved| saved.owner == owner && *saved.path() == path);
    for change in taken {
        if let Err(error) = server.shared().store.write(change).await {
            // It would be back after a restart. Another one may have its name by now.
            if checkpoints.find_own(owner, &path).is_none() {
                checkpoints.add(saved);
            }
            return Err(error.into());
        }
    }
    server.remember(owner, "checkpoint_delete", &path);
    Ok(Plain(Map::new()))
}

pub(crate) async fn publish(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    server
        .set_public(owner, &read_address(address)?, true)
        .await
}

pub(crate) async fn unpublish(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    server
        .set_public(owner, &read_address(address)?, false)
        .await
}

pub(crate) async fn set_ttl(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
    Decoded(request): Decoded<SetCheckpointTtlRequest>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    let path = read_address(address)?;
    request.ttl_seconds.map(check_ttl).transpose()?;
    let ttl = request.ttl_seconds.map(Duration::from_secs);
    let expires_at = ttl.and_then(|ttl| Timestamp::now().checked_add(ttl).ok());
    let set = |checkpoint: &mut Checkpoint| {
        checkpoint.expires_at = expires_at;
        Ok(())
    };
    server.modify_checkpoint(owner, &path, set).await?;
    server.remember(owner, "checkpoint_set_ttl", &path);
    Ok(Plain(Map::new()))
}

impl Server {
    async fn set_public(
        &self,
        owner: Owner,
        path: &TinkerPath,
        public: bool,
    ) -> Result<Plain<Map<String, Value>>, ApiError> {
        let set = |checkpoint: &mut Checkpoint| {
            if checkpoint.public == public {
                let state = if public { "public" } else { "private" };
                return Err(ApiError::conflict(format!("`{path}` is {state} already")));
            }
            checkpoint.public = public;
            Ok(())
        };
        self.modify_checkpoint(owner, path, set).await?;
        let event = if public {
            "checkpoint_publish"
        } else {
            "checkpoint_unpublish"
        };
        self.remember(owner, event, path);
        Ok(Plain(Map::new()))
    }

    /// Changes what is known of a checkpoint that is this owner's.
    async fn modify_checkpoint(
        &self,
        owner: Owner,
        path: &TinkerPath,
        change: impl FnOnce(&mut Checkpoint) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let modified = self.shared().checkpoints.modify(owner, path, change);
        let missing = || ApiError::not_found(format!("there is no checkpoint `{path}`"));
        modified.await.ok_or_else(missing)?
    }

    /// Notes in the audit log what was done with a checkpoint.
    pub(super) fn remember(&self, owner: Owner, event: &'static str, path: &TinkerPath) {
        self.shared().store.remember_checkpoint(owner, event, path);
    }
}

/// Puts the segments of an address together.
pub(super) fn read_address((run, kind, name): Address) -> Result<TinkerPath, ApiError> {
    let kind = CheckpointKind::from_segment(&kind).ok_or_else(|| {
        ApiError::bad_request(format!(
            "found the kind `{kind}`, expected weights, sampler_weights or external_weights"
        ))
    })?;
    Ok(TinkerPath::new(ModelId::new(run), kind, name)?)
}
