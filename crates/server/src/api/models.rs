//! Models in training: creating them, and what is known of them.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Map, Value};
use tinkrs_types::{
    InvalidInput, LoraConfig, ModelData, ModelId, ModelInfo, OptimizerConfig, Promise, RequestId,
    UserMetadata,
};
use tinkrs_wire::op::create_model::CreateModelRequest;
use tinkrs_wire::op::get_info::GetInfoRequest;
use tinkrs_wire::op::unload_model::UnloadModelRequest;

use super::Plain;
use crate::Server;
use crate::error::Refusal;
use crate::extract::Decoded;
use crate::registry::Run;
use crate::worker::{Command, Operation, TrainJob};

/// The largest rank of an adapter.
const RANK: u32 = 1024;

pub(crate) async fn create(
    State(server): State<Server>,
    Decoded(request): Decoded<CreateModelRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server.create_model(request).map(Plain)
}

pub(crate) async fn info(
    State(server): State<Server>,
    Decoded(request): Decoded<GetInfoRequest>,
) -> Result<Plain<ModelInfo>, Refusal> {
    server.model_info(request.model_id).map(Plain)
}

pub(crate) async fn unload(
    State(server): State<Server>,
    Decoded(request): Decoded<UnloadModelRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server.unload_model(request.model_id).map(Plain)
}

impl Server {
    fn create_model(&self, request: CreateModelRequest) -> Result<Promise, Refusal> {
        let base = Arc::clone(self.base(&request.base_model)?);
        let lora = check_lora(request.lora_config)?;
        if request.optimizer_config != OptimizerConfig::AdamW {
            return Err(Refusal::bad_request(format!(
                "`optimizer_config.type`: found {}, expected adamw, the only optimizer of this \
                 server",
                request.optimizer_config.name()
            )));
        }
        let user_metadata = request.user_metadata.map(read_metadata).transpose()?;

        let mut registry = self.registry();
        let session = registry.open_session(&request.session_id)?;
        let model_id = ModelId::in_session(&request.session_id, request.model_seq_id);
        if let Some(id) = session.models.get(&request.model_seq_id) {
            return Ok(promise(id.clone(), model_id));
        }
        let permit = base.operation_permit()?;
        let answer = self.inner().futures.promise();
        let request_id = answer.id().clone();
        session
            .models
            .insert(request.model_seq_id, request_id.clone());
        let run = Run::new(
            request.session_id,
            Arc::clone(&base),
            lora.clone(),
            user_metadata,
        );
        registry.runs.insert(model_id.clone(), run);
        base.send(Command::Train(TrainJob {
            model_id: model_id.clone(),
            operation: Operation::Create(lora),
            answer,
            permit: Some(permit),
        }));
        Ok(promise(request_id, model_id))
    }

    /// Frees a model after what is queued now. Older clients do this without a number, so it has no
    /// place in the model's order.
    fn unload_model(&self, model_id: ModelId) -> Result<Promise, Refusal> {
        let mut registry = self.registry();
        let base = &registry.open_run(&model_id)?.base;
        let permit = base.operation_permit()?;
        let answer = self.inner().futures.promise();
        let request_id = answer.id().clone();
        base.send(Command::Train(TrainJob {
            model_id: model_id.clone(),
            operation: Operation::Unload,
            answer,
            permit: Some(permit),
        }));
        Ok(promise(request_id, model_id))
    }

    fn model_info(&self, id: ModelId) -> Result<ModelInfo, Refusal> {
        let mut registry = self.registry();
        let run = registry.run(&id)?;
        let data = ModelData {
            arch: Some(format!("{:?}", run.base.model.config().architecture).to_lowercase()),
            model_name: Some(run.base.name.clone()),
            tokenizer_id: run.base.tokenizer.clone(),
        };
        let mut info = ModelInfo::new(id, data);
        info.is_lora = Some(true);
        info.lora_rank = Some(run.lora.rank);
        info.model_name = Some(run.base.name.clone());
        Ok(info)
    }
}

fn promise(request_id: RequestId, model_id: ModelId) -> Promise {
    Promise {
        request_id,
        model_id: Some(model_id),
        sample_sequence_ids: None,
    }
}

/// Checks an adapter's settings, and draws the seed that they leave to chance.
fn check_lora(config: Option<LoraConfig>) -> Result<LoraConfig, InvalidInput> {
    let Some(mut config) = config else {
        return Err(InvalidInput::new(
            "lora_config",
            "nothing",
            "a rank: this server trains adapters only",
        ));
    };
    config.check()?;
    if config.rank > RANK {
        return Err(InvalidInput::new(
            "lora_config.rank",
            config.rank,
            format!("at most {RANK}"),
        ));
    }
    config.seed.get_or_insert_with(|| fastrand::i64(..));
    Ok(config)
}

/// Reads labels, which listings show as texts.
fn read_metadata(members: Map<String, Value>) -> Result<UserMetadata, InvalidInput> {
    let text = |(name, value): (String, Value)| match value {
        Value::String(text) => Ok((name, text)),
        other => Err(InvalidInput::new(
            format!("user_metadata.{name}"),
            other,
            "a text",
        )),
    };
    members.into_iter().map(text).collect()
}
