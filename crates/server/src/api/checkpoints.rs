//! What can be done with a checkpoint that exists.

use std::time::Duration;

use axum::extract::State;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_types::protocol::check_ttl;
use tinkrs_types::rest::Checkpoint;
use tinkrs_types::{CheckpointKind, TinkerPath};
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
    let path = server.read_address(owner, address)?;
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
        .set_public(owner, &server.read_address(owner, address)?, true)
        .await
}

pub(crate) async fn unpublish(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    server
        .set_public(owner, &server.read_address(owner, address)?, false)
        .await
}

pub(crate) async fn set_ttl(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(address): InPath<Address>,
    Decoded(request): Decoded<SetCheckpointTtlRequest>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    let path = server.read_address(owner, address)?;
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

    /// Puts the segments of an address together. Its run may be a name.
    pub(super) fn read_address(
        &self,
        owner: Owner,
        (run, kind, name): Address,
    ) -> Result<TinkerPath, ApiError> {
        let kind = match CheckpointKind::from_segment(&kind) {
            Some(kind) => kind,
            None if ACTIONS.contains(&name.as_str()) => return Err(no_kind(&kind)),
            None => {
                return Err(ApiError::bad_request(format!(
                    "found the kind `{kind}`, expected weights, sampler_weights or external_weights"
                )));
            }
        };
        let run = self.registry().run_id(owner, &run)?;
        Ok(TinkerPath::new(run, kind, name)?)
    }

    /// Notes in the audit log what was done with a checkpoint.
    pub(super) fn remember(&self, owner: Owner, event: &'static str, path: &TinkerPath) {
        self.shared().store.remember_checkpoint(owner, event, path);
    }
}

/// What stands behind the id of a checkpoint in an address.
const ACTIONS: [&str; 4] = ["publish", "ttl", "archive", "external_weights_urls"];

/// Finds the id of a checkpoint in a path that has no route because the id is a name without its kind.
pub(crate) fn id_without_kind(path: &str) -> Option<&str> {
    let address = path.strip_prefix("/api/v1/training_runs/")?;
    let (_, id) = address.split_once("/checkpoints/")?;
    let id = match id.rsplit_once('/') {
        Some((id, action)) if ACTIONS.contains(&action) => id,
        _ => id,
    };
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

/// Says which ids checkpoints have.
pub(crate) fn no_kind(id: &str) -> ApiError {
    // A kind alone, or one whose slash is encoded, would be an example of nothing.
    let name = if CheckpointKind::from_segment(id).is_some() || id.contains('%') {
        "NAME"
    } else {
        id
    };
    ApiError::bad_request(format!(
        "`{id}` is not the id of a checkpoint, which is its kind and its name: expected `weights/{name}`, \
         `sampler_weights/{name}` or `external_weights/{name}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_kind_is_told_from_other_paths() {
        let of_run = |rest: &str| format!("/api/v1/training_runs/s:train:0/checkpoints{rest}");
        let cases = [
            ("/ck", Some("ck")),
            ("/ck/publish", Some("ck")),
            ("/ck/ttl", Some("ck")),
            ("/ck/archive", Some("ck")),
            ("/ck/external_weights_urls", Some("ck")),
            ("/weights", Some("weights")),
            ("/weights%2Fck", Some("weights%2Fck")),
            ("", None),
            ("/", None),
            ("/ck/juggle", None),
            ("/weights/ck/juggle", None),
            ("/weights/ck/publish", None),
        ];
        for (rest, expected) in cases {
            assert_eq!(id_without_kind(&of_run(rest)), expected, "{rest}");
        }
        assert_eq!(id_without_kind("/api/v1/models/m/checkpoints/ck"), None);
    }
}
