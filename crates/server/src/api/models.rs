//! Models in training: creating them, and what is known of them.

use axum::extract::State;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_backend::Description;
use tinkrs_types::protocol::Promise;
use tinkrs_types::training::{ModelData, ModelInfo, OptimizerConfig};
use tinkrs_types::{InvalidInput, LoraConfig, ModelId, SessionId, TinkerPath, UserMetadata};
use tinkrs_wire::op::create_model::CreateModelRequest;
use tinkrs_wire::op::get_info::GetInfoRequest;

use super::{Noted, Plain};
use crate::Server;
use crate::accept::{AcceptOnce, Claimed, Submission};
use crate::auth::Owner;
use crate::body::read_json;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, Json};
use crate::operations::OperationKind;
use crate::operations::create_model::CREATE_MODEL;
use crate::operations::queue::{ClaimedOperation, promise};
use crate::operations::unload_model::UNLOAD_MODEL;
use crate::registry::records::RunRecord;
use crate::registry::{Registry, Run};
use crate::run_names::{Naming, set_name};
use crate::store::Change;
use crate::worker::Operation;

const UNUSUAL_RANK: &str =
    "a rank that is no power of two works on this server, but not on the hosted service";

/// The largest rank of an adapter.
pub(super) const RANK: u32 = 1024;

pub(crate) async fn create(
    State(server): State<Server>,
    Caller(owner): Caller,
    Json(body): Json,
) -> Result<Noted<Plain<Promise>>, ApiError> {
    let request: CreateModelRequest = read_json(&body)?;
    let lora = request.lora_config.as_ref();
    let note = lora.and_then(|lora| (!lora.rank.is_power_of_two()).then_some(UNUSUAL_RANK));
    let promise = server.create_model(owner, request, body).await?;
    Ok(Noted(Plain(promise), note))
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
    let address = body.address(&UNLOAD_MODEL, server.shared().room(owner))?;
    let promise = server.submit(owner, &UNLOAD_MODEL, &address, body.0);
    promise.await.map(Plain)
}

/// A model to be created.
pub(super) struct NewRun {
    pub(super) session: SessionId,
    pub(super) seq_id: u64,
    pub(super) base_model: String,
    pub(super) lora: LoraConfig,
    pub(super) optimizer: OptimizerConfig,
    pub(super) user_metadata: Option<UserMetadata>,
    pub(super) kind: &'static OperationKind,
    pub(super) operation: Operation,
}

impl Server {
    async fn create_model(
        &self,
        owner: Owner,
        request: CreateModelRequest,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let base = self.base(&request.base_model)?;
        let lora = check_lora(request.lora_config)?;
        let optimizer = request.optimizer_config;
        check_optimizer(&optimizer, &base.description)?;
        let new = NewRun {
            session: request.session_id,
            seq_id: request.model_seq_id,
            base_model: request.base_model,
            operation: Operation::Create {
                lora: lora.clone(),
                optimizer: optimizer.clone(),
            },
            lora,
            optimizer,
            user_metadata: request.user_metadata.map(read_metadata).transpose()?,
            kind: &CREATE_MODEL,
        };
        self.create_run(owner, new, body).await
    }

    /// Creates a model, unless it was created before. Its creation is the operation with sequence id 0.
    pub(super) async fn create_run(
        &self,
        owner: Owner,
        new: NewRun,
        body: Bytes,
    ) -> Result<Promise, ApiError> {
        let model_id = ModelId::in_session(&new.session, new.seq_id);
        let mut submission = Submission::new(owner, new.kind.name, model_id.to_string(), body);
        submission.seq_id = Some(0);
        self.accept_once(CreateRun {
            submission,
            model_id,
            new,
        })
        .await
    }

    fn model_info(&self, owner: Owner, id: ModelId) -> Result<ModelInfo, ApiError> {
        let mut registry = self.registry();
        let record = &registry.run(owner, &id)?.record;
        let base = self.bases().get(&record.base_model);
        let mut data = ModelData::default();
        data.arch = base.map(|base| base.description.architecture.clone());
        data.model_name = Some(record.base_model.clone());
        data.tokenizer_id = base.and_then(|base| base.tokenizer_id.clone());
        let mut info = ModelInfo::new(id, data);
        info.optimizer_config = record.optimizer.clone();
        info.is_lora = Some(true);
        info.lora_rank = Some(record.lora.rank);
        info.model_name = Some(record.base_model.clone());
        Ok(info)
    }
}

/// A request for a new model.
struct CreateRun {
    submission: Submission,
    model_id: ModelId,
    new: NewRun,
}

/// A new model whose creation is its first operation.
struct ClaimedRun {
    claimed: ClaimedOperation,
    /// The run whose name it takes over, as it was.
    earlier: Option<RunRecord>,
}

impl AcceptOnce for CreateRun {
    type Reply = Promise;
    type Claimed = ClaimedRun;

    fn check(&self, _: &Server, registry: &mut Registry) -> Result<(), ApiError> {
        registry.open_session(self.submission.owner, &self.new.session)?;
        Ok(())
    }

    fn seen(&self, _: &Server, registry: &mut Registry) -> Result<Option<Promise>, ApiError> {
        let model_id = &self.model_id;
        let Some(run) = registry.find_run(self.submission.owner, model_id)? else {
            return Ok(None);
        };
        // A creation that is not remembered can only be an old one.
        let first = run.requests.get(&0).ok_or_else(|| {
            ApiError::bad_request(format!(
                "`model_seq_id`: there is a model `{model_id}` already"
            ))
        })?;
        let id = self.submission.repeats(Some(first))?;
        Ok(id.map(|id| promise(id, model_id)))
    }

    fn claim(
        self,
        server: &Server,
        registry: &mut Registry,
    ) -> Result<(Change, ClaimedRun), ApiError> {
        let Self {
            submission,
            model_id,
            new,
        } = self;
        let owner = submission.owner;
        let limit = server.shared().settings.open_models;
        if registry.open_models_of(owner) >= limit {
            return Err(ApiError::bad_request(format!(
                "this key has {limit} open models, which is the limit (`open_models`): unload some, or finish their \
                 sessions"
            )));
        }
        let base = server.base(&new.base_model)?;
        let place = base.operation_place(owner)?;
        let responder = server.shared().results.promise(owner, None);
        let from = match &new.operation {
            Operation::CreateFrom { path, .. } => Some(path),
            _ => None,
        };
        let started_from = from.cloned();
        let from = from.map(TinkerPath::run);
        let labels = new.user_metadata.as_ref();
        let Naming { name, renamed } = registry.name_run(owner, &model_id, labels, from)?;
        let mut record = RunRecord {
            id: model_id.clone(),
            owner,
            session: new.session,
            base_model: new.base_model,
            lora: new.lora,
            optimizer: new.optimizer,
            user_metadata: new.user_metadata,
            name: None,
            created_at: Timestamp::now(),
            closed: None,
            corrupted: false,
            numerics: Some(base.description.numerics()),
            earlier_numerics: Vec::new(),
            started_from,
        };
        set_name(&mut record, name);
        let mut run = Run::new(record.clone(), 0);
        run.last_request = submission.accepted;
        run.promise(0, submission.promised(&responder));
        registry.runs.insert(model_id.clone(), run);
        let is_new = true;
        let mut also = vec![Change::Run { record, is_new }];
        // What the earlier run is called, should this one not be stored.
        let mut earlier = None;
        if let Some(record) = renamed {
            earlier = Some(registry.run(owner, &record.id)?.record.clone());
            registry.run(owner, &record.id)?.record = record.clone();
            let is_new = false;
            also.push(Change::Run { record, is_new });
        }
        let change = submission.journal(&responder, None, also);
        let claimed = ClaimedOperation {
            submission,
            model_id,
            seq_id: 0,
            responder,
            operation: Ok(new.operation),
            place: Some(place),
            memory: None,
        };
        Ok((change, ClaimedRun { claimed, earlier }))
    }
}

impl Claimed for ClaimedRun {
    type Reply = Promise;

    fn commit(self, server: &Server, registry: &mut Registry) -> Result<Promise, ApiError> {
        self.claimed.commit(server, registry)
    }

    fn roll_back(self, server: &Server, registry: &mut Registry) {
        server
            .shared()
            .results
            .withdraw(self.claimed.responder.id());
        registry.runs.remove(&self.claimed.model_id);
        if let Some(earlier) = self.earlier
            && let Some(run) = registry.runs.get_mut(&earlier.id)
        {
            run.record.name = earlier.name;
            run.record.user_metadata = earlier.user_metadata;
        }
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

/// Checks that a backend has an optimizer.
pub(super) fn check_optimizer(
    config: &OptimizerConfig,
    backend: &Description,
) -> Result<(), InvalidInput> {
    let known = &backend.optimizers;
    if known.iter().any(|known| known == config.name()) {
        return Ok(());
    }
    let allowed = format!("an optimizer of this server: {}", known.join(", "));
    Err(InvalidInput::new(
        "optimizer_config.type",
        config.name(),
        allowed,
    ))
}

/// The most labels of a session, a run or a checkpoint, and the bytes of all of them together.
const LABELS: usize = 256;
const LABEL_BYTES: usize = 64 << 10;

/// Reads labels, which listings show as texts.
pub(super) fn read_metadata(members: Map<String, Value>) -> Result<UserMetadata, InvalidInput> {
    check_labels(
        "user_metadata",
        members
            .iter()
            .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)),
    )?;
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

/// Checks how many labels or tags there are, and how many bytes they have.
pub(crate) fn check_labels(
    field: &'static str,
    sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<(), InvalidInput> {
    let (count, allowed) = (
        sizes.len(),
        format!("at most {LABELS}, of {LABEL_BYTES} bytes together"),
    );
    let bytes: usize = sizes.sum();
    if count > LABELS || bytes > LABEL_BYTES {
        let found = format!("{count} with {bytes} bytes");
        return Err(InvalidInput::new(field, found, allowed));
    }
    Ok(())
}
