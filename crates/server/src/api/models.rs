//! Models in training: creating them, and what is known of them.

use axum::extract::State;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_types::protocol::Promise;
use tinkrs_types::training::{ModelData, ModelInfo, OptimizerConfig};
use tinkrs_types::{InvalidInput, LoraConfig, ModelId, SessionId, UserMetadata};
use tinkrs_wire::op::create_model::CreateModelRequest;
use tinkrs_wire::op::get_info::GetInfoRequest;

use super::Plain;
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, Json};
use crate::queue::{NewOperation, Numbered, Taken, digest, same};
use crate::record::RunRecord;
use crate::registry::{Promised, Run, in_milliseconds};
use crate::request::{Kind, read_json};
use crate::store::Change;
use crate::worker::Operation;

/// The largest rank of an adapter.
pub(super) const RANK: u32 = 1024;

pub(crate) async fn create(
    State(server): State<Server>,
    Caller(owner): Caller,
    Json(body): Json,
) -> Result<Plain<Promise>, ApiError> {
    let request = read_json(&body)?;
    server.create_model(owner, request, body).await.map(Plain)
}

pub(crate) async fn info(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(request): Decoded<GetInfoRequest>,
) -> Result<Plain<ModelInfo>, ApiError> {
    server.model_info(owner, request.model_id).map(Plain)
}

/// Frees a model after what is queued now. Older clients do this without a number, so it takes the
/// next one.
pub(crate) async fn unload(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Json,
) -> Result<Plain<Promise>, ApiError> {
    let address = body.address(Kind::UnloadModel)?;
    let promise = server.submit(owner, Kind::UnloadModel, &address, body.0);
    promise.await.map(Plain)
}

/// A model to be created.
pub(super) struct NewRun {
    pub(super) session: SessionId,
    pub(super) number: u64,
    pub(super) base_model: String,
    pub(super) lora: LoraConfig,
    pub(super) user_metadata: Option<UserMetadata>,
    pub(super) kind: Kind,
    pub(super) operation: Operation,
}

impl Server {
    async fn create_model(
        &self,
        owner: Owner,
        request: CreateModelRequest,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        self.base(&request.base_model)?;
        let lora = check_lora(request.lora_config)?;
        if request.optimizer_config != OptimizerConfig::AdamW {
            return Err(ApiError::bad_request(format!(
                "`optimizer_config.type`: found {}, expected adamw, the only optimizer of this \
                 server",
                request.optimizer_config.name()
            )));
        }
        let new = NewRun {
            session: request.session_id,
            number: request.model_seq_id,
            base_model: request.base_model,
            operation: Operation::Create(lora.clone()),
            lora,
            user_metadata: request.user_metadata.map(read_metadata).transpose()?,
            kind: Kind::CreateModel,
        };
        self.create_run(owner, new, body).await
    }

    /// Creates a model, unless it was created before. Its creation is the operation number 0.
    pub(super) async fn create_run(
        &self,
        owner: Owner,
        new: NewRun,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let numbered = Numbered {
            kind: new.kind,
            model_id: ModelId::in_session(&new.session, new.number),
            number: 0,
            digest: digest(&body),
            body,
            owner,
            accepted: in_milliseconds(Timestamp::now()),
        };
        let taken = self.take_model(&numbered, new)?;
        self.accept(numbered, taken).await
    }

    fn take_model(&self, numbered: &Numbered, new: NewRun) -> Result<Taken, ApiError> {
        let (owner, model_id) = (numbered.owner, &numbered.model_id);
        let mut registry = self.registry();
        registry.open_session(owner, &new.session)?;
        if let Some(run) = registry.find_run(owner, model_id)? {
            // A creation that was forgotten can only be an old one.
            return match run.requests.get(&0) {
                Some(known) => same(known, numbered).map(Taken::Before),
                None => Err(ApiError::bad_request(format!(
                    "`model_seq_id`: there is a model `{model_id}` already"
                ))),
            };
        }
        let permit = self.base(&new.base_model)?.operation_permit()?;
        let answer = self.shared().results.promise(owner, None);
        let record = RunRecord {
            id: model_id.clone(),
            owner,
            session: new.session,
            base_model: new.base_model,
            lora: new.lora,
            user_metadata: new.user_metadata,
            created_at: Timestamp::now(),
            closed: None,
            corrupted: false,
        };
        let mut run = Run::new(record.clone(), 0);
        run.last_request = numbered.accepted;
        let promised = Promised {
            id: answer.id().clone(),
            digest: numbered.digest,
        };
        run.promise(0, promised);
        registry.runs.insert(model_id.clone(), run);
        let is_new = true;
        Ok(Taken::New(Box::new(NewOperation {
            answer,
            operation: Ok(new.operation),
            permit: Some(permit),
            also: vec![Change::Run { record, is_new }],
        })))
    }

    fn model_info(&self, owner: Owner, id: ModelId) -> Result<ModelInfo, ApiError> {
        let mut registry = self.registry();
        let record = &registry.run(owner, &id)?.record;
        let base = self.bases().get(&record.base_model);
        let arch = base.map(|base| format!("{:?}", base.model.config().architecture));
        let mut data = ModelData::default();
        data.arch = arch.map(|arch| arch.to_lowercase());
        data.model_name = Some(record.base_model.clone());
        data.tokenizer_id = base.and_then(|base| base.tokenizer.clone());
        let mut info = ModelInfo::new(id, data);
        info.is_lora = Some(true);
        info.lora_rank = Some(record.lora.rank);
        info.model_name = Some(record.base_model.clone());
        Ok(info)
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
pub(super) fn read_metadata(members: Map<String, Value>) -> Result<UserMetadata, InvalidInput> {
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
