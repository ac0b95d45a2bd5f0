//! Saving and loading weights.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Map, Value};
use tinkrs_backend::StatePart;
use tinkrs_types::protocol::Promise;
use tinkrs_types::rest::WeightsInfo;
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{CheckpointKind, CheckpointRef, LoraConfig, TinkerPath};
use tinkrs_wire::op::forward_backward::Address;
use tinkrs_wire::op::load_weights::LoadWeightsRequest;
use tinkrs_wire::op::weights_info::WeightsInfoRequest;

use super::models::{NewRun, check_optimizer, read_metadata};
use super::{Noted, Plain};
use crate::Server;
use crate::auth::Owner;
use crate::body::read_json;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, Json};
use crate::operations::OperationKind;
use crate::operations::load_weights::{self, LOAD_WEIGHTS};
use crate::operations::save_weights::{
    SAVE_WEIGHTS, SAVE_WEIGHTS_EXTERNAL, SAVE_WEIGHTS_FOR_SAMPLER,
};
use crate::registry::records::SavedCheckpoint;
use crate::worker::Operation;

pub(crate) async fn save(
    server: State<Server>,
    caller: Caller,
    body: Json,
) -> Result<Response, ApiError> {
    submit(server, caller, &SAVE_WEIGHTS, body).await
}

pub(crate) async fn save_for_sampler(
    server: State<Server>,
    caller: Caller,
    body: Json,
) -> Result<Response, ApiError> {
    submit(server, caller, &SAVE_WEIGHTS_FOR_SAMPLER, body).await
}

pub(crate) async fn save_external(
    server: State<Server>,
    caller: Caller,
    body: Json,
) -> Result<Response, ApiError> {
    submit(server, caller, &SAVE_WEIGHTS_EXTERNAL, body).await
}

const LOADED_LATE: &str = "loading weights after a model's first operation works on this server, but by all accounts not \
    on the hosted service: create a training client from the checkpoint instead";

/// Loads into a model that exists, or into a new one.
pub(crate) async fn load(
    server: State<Server>,
    Caller(owner): Caller,
    body: Json,
) -> Result<Response, ApiError> {
    let body = Json(server.with_path(owner, body.0)?);
    if let Ok(address) = Address::of_json(&body.0) {
        let promise = submit(server, Caller(owner), &LOAD_WEIGHTS, body).await?;
        let note = (address.seq_id > 1).then_some(LOADED_LATE);
        return Ok(Noted(promise, note).into_response());
    }
    let request = read_json(&body.0)?;
    let promise = server
        .create_from_checkpoint(owner, request, body.0)
        .await?;
    Ok(Plain(promise).into_response())
}

async fn submit(
    State(server): State<Server>,
    Caller(owner): Caller,
    kind: &'static OperationKind,
    body: Json,
) -> Result<Response, ApiError> {
    let address = body.address(kind, server.shared().room(owner))?;
    let promise = server.submit(owner, kind, &address, body.0).await?;
    Ok(Plain(promise).into_response())
}

pub(crate) async fn info(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<WeightsInfoRequest>,
) -> Result<Plain<WeightsInfo>, ApiError> {
    let kinds = [
        CheckpointKind::Training,
        CheckpointKind::Sampler,
        CheckpointKind::External,
    ];
    let path = server.checkpoint_path(&server.registry(), owner, &request.tinker_path, &kinds)?;
    let saved = server.checkpoint(owner, &path)?;
    Ok(Plain(saved.info))
}

impl Server {
    /// Finds a checkpoint that an owner may read.
    pub(crate) fn checkpoint(
        &self,
        owner: Owner,
        path: &TinkerPath,
    ) -> Result<SavedCheckpoint, ApiError> {
        let saved = self.shared().checkpoints.find(owner, path);
        saved.ok_or_else(|| ApiError::not_found(format!("there is no checkpoint `{path}`")))
    }

    /// Puts the path of a checkpoint where a request has the name of a run. So it is in the journal, and means the
    /// same when it is repeated.
    fn with_path(&self, owner: Owner, body: Bytes) -> Result<Bytes, ApiError> {
        let Ok(mut members) = serde_json::from_slice::<Map<String, Value>>(&body) else {
            // What is wrong with it is said where it is read.
            return Ok(body);
        };
        let Some(text) = members.get("path").and_then(Value::as_str) else {
            return Ok(body);
        };
        let is_path = text
            .parse::<TinkerPath>()
            .is_ok_and(|path| path.run().as_str().contains(':'));
        if is_path || text.parse::<CheckpointRef>().is_err() {
            return Ok(body);
        }
        let kinds = [CheckpointKind::Training];
        let path = self.checkpoint_path(&self.registry(), owner, text, &kinds)?;
        members.insert("path".to_owned(), path.to_string().into());
        let body = serde_json::to_vec(&members);
        Ok(body.expect("members have text keys").into())
    }

    /// Creates a model as it was when a checkpoint was saved.
    async fn create_from_checkpoint(
        &self,
        owner: Owner,
        request: LoadWeightsRequest,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let path = load_weights::source(&request)?;
        let part = load_weights::part(&request, OptimizerConfig::default());
        let (Some(session), Some(seq_id)) = (request.session_id, request.model_seq_id) else {
            return Err(ApiError::bad_request(
                "expected `model_id`, or `session_id` with `model_seq_id`",
            ));
        };
        if request.seq_id.is_some() {
            return Err(ApiError::bad_request(
                "`seq_id` needs a `model_id`: creating a model has none",
            ));
        }
        let info = self.checkpoint(owner, &path)?.info;
        if request
            .base_model
            .is_some_and(|name| name != info.base_model)
        {
            return Err(ApiError::bad_request(format!(
                "`base_model`: `{path}` belongs to `{}`",
                info.base_model
            )));
        }
        let optimizer = match &part {
            StatePart::Everything => info.optimizer_config,
            StatePart::Weights(optimizer) => optimizer.clone(),
        };
        check_optimizer(&optimizer, &self.base(&info.base_model)?.description)?;
        let lora = LoraConfig {
            rank: info.lora_rank.unwrap_or_default(),
            seed: Some(0),
            train_unembed: info.train_unembed.unwrap_or(true),
            train_mlp: info.train_mlp.unwrap_or(true),
            train_attn: info.train_attn.unwrap_or(true),
        };
        let new = NewRun {
            session,
            seq_id,
            base_model: info.base_model,
            lora,
            optimizer,
            user_metadata: request.user_metadata.map(read_metadata).transpose()?,
            kind: &LOAD_WEIGHTS,
            operation: Operation::CreateFrom { path, part },
        };
        self.create_run(owner, new, body).await
    }
}
