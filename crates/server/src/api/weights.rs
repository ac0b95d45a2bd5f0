//! Saving and loading weights.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use tinkrs_types::protocol::check_ttl;
use tinkrs_types::rest::WeightsInfo;
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{
    CheckpointKind, LoraConfig, ModelId, SamplingSessionId, TinkerPath, UserMetadata,
};
use tinkrs_wire::op::forward_backward::Address;
use tinkrs_wire::op::load_weights::LoadWeightsRequest;
use tinkrs_wire::op::save_weights::SaveWeightsRequest;
use tinkrs_wire::op::save_weights_external::SaveWeightsExternalRequest;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerRequest;
use tinkrs_wire::op::weights_info::WeightsInfoRequest;

use super::Plain;
use super::models::{NewRun, read_metadata};
use crate::Server;
use crate::auth::Owner;
use crate::checkpoints::{NewCheckpoint, check_name};
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, Json};
use crate::record::SavedCheckpoint;
use crate::registry::Registry;
use crate::request::{Kind, read_json};
use crate::worker::Operation;

pub(crate) async fn save(
    server: State<Server>,
    caller: Caller,
    body: Json,
) -> Result<Response, ApiError> {
    submit(server, caller, Kind::SaveWeights, body).await
}

pub(crate) async fn save_for_sampler(
    server: State<Server>,
    caller: Caller,
    body: Json,
) -> Result<Response, ApiError> {
    submit(server, caller, Kind::SaveWeightsForSampler, body).await
}

pub(crate) async fn save_external(
    server: State<Server>,
    caller: Caller,
    body: Json,
) -> Result<Response, ApiError> {
    submit(server, caller, Kind::SaveWeightsExternal, body).await
}

/// Loads into a model that exists, or into a new one.
pub(crate) async fn load(
    server: State<Server>,
    Caller(owner): Caller,
    body: Json,
) -> Result<Response, ApiError> {
    if Address::of_json(&body.0).is_ok() {
        return submit(server, Caller(owner), Kind::LoadWeights, body).await;
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
    kind: Kind,
    body: Json,
) -> Result<Response, ApiError> {
    let address = body.address(kind)?;
    let promise = server.submit(owner, kind, &address, body.0).await?;
    Ok(Plain(promise).into_response())
}

pub(crate) async fn info(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<WeightsInfoRequest>,
) -> Result<Plain<WeightsInfo>, ApiError> {
    let saved = server.checkpoint(owner, &request.tinker_path.parse()?)?;
    Ok(Plain(saved.info))
}

pub(crate) fn prepare_save(
    registry: &mut Registry,
    owner: Owner,
    model_id: &ModelId,
    request: SaveWeightsRequest,
) -> Result<Operation, ApiError> {
    // Older clients may leave the name to the server.
    let name = request.path.unwrap_or_else(|| {
        let time = Timestamp::now().as_millisecond();
        format!("checkpoint-{time}")
    });
    let checkpoint = new_checkpoint(
        registry,
        (owner, model_id),
        CheckpointKind::Training,
        &name,
        request.ttl_seconds,
        request.user_metadata,
    )?;
    Ok(Operation::SaveWeights(NewCheckpoint {
        overwrite: Some(request.overwrite),
        ..checkpoint
    }))
}

pub(crate) fn prepare_save_for_sampler(
    registry: &mut Registry,
    owner: Owner,
    model_id: &ModelId,
    request: SaveWeightsForSamplerRequest,
) -> Result<Operation, ApiError> {
    match (request.path, request.sampling_session_seq_id) {
        (Some(name), None) => new_checkpoint(
            registry,
            (owner, model_id),
            CheckpointKind::Sampler,
            &name,
            request.ttl_seconds,
            request.user_metadata,
        )
        .map(Operation::SaveNamedSampler),
        (None, Some(number)) => {
            if request.ttl_seconds.is_some() || request.user_metadata.is_some() {
                return Err(ApiError::bad_request(
                    "`ttl_seconds` and `user_metadata` need a `path`: weights without a name last \
                     as long as their session",
                ));
            }
            let session = &registry.run(owner, model_id)?.record.session;
            let sampler = SamplingSessionId::in_session(session, number);
            Ok(Operation::SaveSampler(sampler))
        }
        _ => Err(ApiError::bad_request(
            "expected either `path` or `sampling_session_seq_id`",
        )),
    }
}

pub(crate) fn prepare_save_external(
    registry: &mut Registry,
    owner: Owner,
    model_id: &ModelId,
    request: SaveWeightsExternalRequest,
) -> Result<Operation, ApiError> {
    if request
        .age_encryption_recipients
        .is_some_and(|recipients| !recipients.is_empty())
    {
        return Err(ApiError::bad_request(
            "`age_encryption_recipients`: this server does not encrypt checkpoints; leave it out",
        ));
    }
    new_checkpoint(
        registry,
        (owner, model_id),
        CheckpointKind::External,
        &request.path,
        request.ttl_seconds,
        None,
    )
    .map(Operation::SaveExternal)
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

    pub(crate) fn prepare_load(
        &self,
        registry: &mut Registry,
        owner: Owner,
        model_id: &ModelId,
        request: &LoadWeightsRequest,
    ) -> Result<Operation, ApiError> {
        let path = check_load(request)?;
        let optimizer = request.optimizer;
        if request.model_id.is_none() {
            return Ok(Operation::CreateFrom { path, optimizer });
        }
        if request.session_id.is_some()
            || request.model_seq_id.is_some()
            || request.base_model.is_some()
            || request.user_metadata.is_some()
            || request.optimizer_config.is_some()
        {
            return Err(ApiError::bad_request(
                "`session_id`, `model_seq_id`, `base_model`, `user_metadata` and \
                 `optimizer_config` do not go with `model_id`",
            ));
        }
        // The checkpoint may be the result of an operation that has not run yet; what can be known
        // now is whether it belongs to the same base model.
        if let Some(saved) = self.shared().checkpoints.find(owner, &path) {
            let ours = &registry.run(owner, model_id)?.record.base_model;
            let theirs = &saved.info.base_model;
            if theirs != ours {
                return Err(ApiError::bad_request(format!(
                    "`path`: `{path}` belongs to `{theirs}`, and the model to `{ours}`"
                )));
            }
        }
        Ok(Operation::LoadWeights { path, optimizer })
    }

    /// Creates a model as it was when a checkpoint was saved.
    async fn create_from_checkpoint(
        &self,
        owner: Owner,
        request: LoadWeightsRequest,
        body: bytes::Bytes,
    ) -> Result<tinkrs_types::protocol::Promise, ApiError> {
        let path = check_load(&request)?;
        let (Some(session), Some(number)) = (request.session_id, request.model_seq_id) else {
            return Err(ApiError::bad_request(
                "expected `model_id`, or `session_id` with `model_seq_id`",
            ));
        };
        if request.seq_id.is_some() {
            return Err(ApiError::bad_request(
                "`seq_id` needs a `model_id`: creating a model has no number",
            ));
        }
        if request
            .optimizer_config
            .is_some_and(|config| config != OptimizerConfig::AdamW)
        {
            return Err(ApiError::bad_request(
                "`optimizer_config.type`: expected adamw, the only optimizer of this server",
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
        let lora = LoraConfig {
            rank: info.lora_rank.unwrap_or_default(),
            seed: Some(0),
            train_unembed: info.train_unembed.unwrap_or(true),
            train_mlp: info.train_mlp.unwrap_or(true),
            train_attn: info.train_attn.unwrap_or(true),
        };
        let new = NewRun {
            session,
            number,
            base_model: info.base_model,
            lora,
            user_metadata: request.user_metadata.map(read_metadata).transpose()?,
            kind: Kind::LoadWeights,
            operation: Operation::CreateFrom {
                path,
                optimizer: request.optimizer,
            },
        };
        self.create_run(owner, new, body).await
    }
}

fn check_load(request: &LoadWeightsRequest) -> Result<TinkerPath, ApiError> {
    if request.weights_access_token.is_some() {
        return Err(ApiError::bad_request(
            "`weights_access_token`: this server makes no such tokens; publish the checkpoint instead",
        ));
    }
    let path: TinkerPath = request.path.parse()?;
    path.require(CheckpointKind::Training)?;
    Ok(path)
}

/// Checks what a checkpoint is to be called and how long it is to live.
fn new_checkpoint(
    registry: &mut Registry,
    (owner, model_id): (Owner, &ModelId),
    kind: CheckpointKind,
    name: &str,
    ttl_seconds: Option<u64>,
    user_metadata: Option<UserMetadata>,
) -> Result<NewCheckpoint, ApiError> {
    check_name(name)?;
    ttl_seconds.map(check_ttl).transpose()?;
    let info = registry.run(owner, model_id)?.record.weights_info();
    Ok(NewCheckpoint {
        owner,
        path: TinkerPath::new(model_id.clone(), kind, name)?,
        info,
        overwrite: None,
        ttl: ttl_seconds.map(Duration::from_secs),
        user_metadata,
    })
}
