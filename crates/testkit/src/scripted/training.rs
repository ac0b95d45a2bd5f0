//! Models and what is done to them, in the order of the sequence numbers.

use super::futures::{Outcome, promise};
use super::reply::{Reply, refuse};
use super::script::Effect;
use super::{Recorded, Shared, State};
use crate::arithmetic;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use tinkrs_types::protocol::FailedRequest;
use tinkrs_types::service::ErrorCategory;
use tinkrs_types::training::{Metrics, ModelData, ModelInfo, OptimStepOutput, OptimizerConfig};
use tinkrs_types::{InvalidInput, LoraConfig, LossFn, ModelId, RequestId};
use tinkrs_wire::op::create_custom_loss::{CreateCustomLossRequest, CreateCustomLossResult};
use tinkrs_wire::op::create_model::{CreateModelRequest, CreateModelResult};
use tinkrs_wire::op::forward_backward::{
    ForwardBackwardRequest, encode_json_result, encode_result,
};
use tinkrs_wire::op::get_info::GetInfoRequest;
use tinkrs_wire::op::optim_step::OptimStepRequest;
use tinkrs_wire::{Body, header};

/// Something that was done to a model.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Which model.
    pub model_id: ModelId,
    /// The request's number.
    pub seq_id: i64,
    /// What: the operation's name, or `forward` for a pass without gradients.
    pub operation: &'static str,
    /// The index of the request that was executed, among all that were recorded.
    pub request: usize,
}

/// Does the work of a request.
pub(super) type Work = Box<dyn FnOnce(&mut State) -> Outcome + Send>;

/// A request that may have to wait for those before it.
struct Job {
    operation: &'static str,
    request: usize,
    request_id: RequestId,
    work: Work,
    effect: Option<Effect>,
}

/// A model under training.
pub(super) struct Model {
    pub(super) base_model: String,
    pub(super) lora: LoraConfig,
    pub(super) optimizer: OptimizerConfig,
    next_seq: i64,
    waiting: BTreeMap<i64, Job>,
    skipped: BTreeSet<i64>,
    promised: HashMap<i64, (RequestId, Bytes)>,
    /// Passes since the last optimizer step, and steps.
    passes: u32,
    steps: u32,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").finish_non_exhaustive()
    }
}

impl Model {
    pub(super) fn new(base_model: String, lora: LoraConfig, optimizer: OptimizerConfig) -> Self {
        Self {
            base_model,
            lora,
            optimizer,
            next_seq: 1,
            waiting: BTreeMap::new(),
            skipped: BTreeSet::new(),
            promised: HashMap::new(),
            passes: 0,
            steps: 0,
        }
    }
}

/// The failure that a bad request has.
pub(super) fn user_error(error: &InvalidInput) -> FailedRequest {
    FailedRequest {
        error: error.to_string(),
        category: ErrorCategory::User,
    }
}

/// `create_model`
pub(super) fn create_model(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let Ok(body) = CreateModelRequest::decode(&request.body) else {
        return refuse(400, "not a request for a model");
    };
    let mut state = shared.state();
    if let Err(reply) = state.check_session(&body.session_id) {
        return reply;
    }
    let model_id = ModelId::in_session(&body.session_id, body.model_seq_id);
    if let Some(request_id) = state.promised.get(model_id.as_str()) {
        return promise(request_id.clone());
    }
    let request_id = state.promise(None);
    state
        .promised
        .insert(model_id.as_str().to_owned(), request_id.clone());
    let lora = body.lora_config.unwrap_or_else(|| LoraConfig::new(32));
    let model = Model::new(body.base_model, lora, body.optimizer_config);
    state.models.insert(model_id.clone(), model);
    let result = CreateModelResult { model_id };
    let result = serde_json::from_slice(&result.encode()).expect("what was encoded");
    state.settle(shared, &request_id, Outcome::Json(result), effect);
    promise(request_id)
}

/// `get_info`
pub(super) fn get_info(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = GetInfoRequest::decode(&request.body) else {
        return refuse(400, "not a request for information");
    };
    let state = shared.state();
    let Some(model) = state.models.get(&body.model_id) else {
        return refuse(404, "no such model");
    };
    let mut data = ModelData::default();
    data.arch = Some("counting".to_owned());
    data.model_name = Some(model.base_model.clone());
    data.tokenizer_id = Some(format!("{}:tokenizer", model.base_model));
    let mut info = ModelInfo::new(body.model_id, data);
    info.optimizer_config = model.optimizer.clone();
    info.is_lora = Some(true);
    info.lora_rank = Some(model.lora.rank);
    info.model_name = Some(model.base_model.clone());
    Reply::json(&info)
}

/// `forward_backward`
pub(super) fn forward_backward(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let is_message = request.header("content-type") != Some(header::JSON);
    if is_message && let Some(reply) = &shared.state().json_passes {
        return reply.clone();
    }
    let body = match request.try_pass() {
        Ok(body) => body,
        Err(error) => {
            shared.complain(format!("forward_backward: {error:?}"));
            return refuse(400, "not a pass");
        }
    };
    if body.data.is_empty() {
        return refuse(400, "no data");
    }
    let (model_id, seq_id) = (body.model_id.clone(), i64::from(body.seq_id));
    let operation = if body.forward_only {
        "forward"
    } else {
        "forward_backward"
    };
    submit(shared, request, effect, model_id, seq_id, operation, {
        Box::new(move |state| compute_pass(state, &body))
    })
}

fn compute_pass(state: &mut State, body: &ForwardBackwardRequest) -> Outcome {
    if let LossFn::Custom { loss_id } = &body.loss_fn
        && !state.losses.contains(loss_id)
    {
        let error = InvalidInput::new("loss_id", loss_id, "a loss of this session");
        return Outcome::Failed(user_error(&error));
    }
    let mut output = match arithmetic::pass(&body.data, &body.loss_fn) {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(user_error(&error)),
    };
    if let Some(edit) = &state.edit_pass {
        edit(body, &mut output);
    }
    if let Some(model) = state.models.get_mut(&body.model_id)
        && !body.forward_only
    {
        model.passes += 1;
    }
    let json = encode_json_result(&output);
    Outcome::Message(encode_result(output).into(), json)
}

/// `optim_step`; its metrics tell how many passes it applies, and how many steps there were.
pub(super) fn optim_step(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let Ok(body) = OptimStepRequest::decode(&request.body) else {
        return refuse(400, "not an optimizer step");
    };
    let model_id = body.model_id.clone();
    let seq_id = body.seq_id.unwrap_or(0);
    submit(shared, request, effect, model_id, seq_id, "optim_step", {
        Box::new(move |state| {
            let Some(model) = state.models.get_mut(&body.model_id) else {
                return Outcome::Json(json!({ "metrics": null }));
            };
            model.steps += 1;
            let passes = std::mem::take(&mut model.passes);
            let metrics = Metrics::from([
                ("passes".to_owned(), passes.into()),
                ("steps".to_owned(), model.steps.into()),
            ]);
            let output = OptimStepOutput::new(Some(metrics));
            Outcome::Json(serde_json::to_value(output).expect("metrics have text keys"))
        })
    })
}

/// `create_custom_loss`
pub(super) fn create_custom_loss(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let Ok(body) = CreateCustomLossRequest::decode(&request.body) else {
        return refuse(400, "not a custom loss");
    };
    let mut state = shared.state();
    if let Err(reply) = state.check_session(&body.session_id) {
        return reply;
    }
    let key = format!("{}:loss:{}", body.session_id, body.custom_loss_seq_id);
    if let Some(request_id) = state.promised.get(&key) {
        return promise(request_id.clone());
    }
    let request_id = state.promise(None);
    state.promised.insert(key.clone(), request_id.clone());
    let loss_id: tinkrs_types::LossId = key.into();
    state.losses.push(loss_id.clone());
    let result = CreateCustomLossResult { loss_id };
    let result = serde_json::to_value(result).expect("ids are text");
    state.settle(shared, &request_id, Outcome::Json(result), effect);
    promise(request_id)
}

/// Takes a request for a model, and executes it as soon as all before it were executed.
pub(super) fn submit(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
    model_id: ModelId,
    seq_id: i64,
    operation: &'static str,
    work: Work,
) -> Reply {
    let mut state = shared.state();
    if let Some((session, _)) = model_id.session()
        && let Err(reply) = state.check_session(&session)
    {
        return reply;
    }
    let Some(model) = state.models.get(&model_id) else {
        return refuse(404, "no such model");
    };
    if let Some((request_id, before)) = model.promised.get(&seq_id) {
        if !same_payload(before, &request.body) {
            shared.complain(format!(
                "two different requests of {model_id} numbered {seq_id}"
            ));
            return refuse(409, "another request has this seq_id");
        }
        return promise(request_id.clone());
    }
    if seq_id < model.next_seq {
        shared.complain(format!(
            "{operation} of {model_id} numbered {seq_id} came too late"
        ));
        return refuse(400, "this seq_id is past");
    }
    let request_id = state.promise(None);
    let model = state.models.get_mut(&model_id).expect("it was found");
    model
        .promised
        .insert(seq_id, (request_id.clone(), request.body.clone()));
    let job = Job {
        operation,
        request: request.index,
        request_id: request_id.clone(),
        work,
        effect,
    };
    model.waiting.insert(seq_id, job);
    run_ready(shared, &mut state, &model_id);
    let waits = state
        .models
        .get(&model_id)
        .is_some_and(|model| model.waiting.contains_key(&seq_id));
    if waits && let Some(time) = state.skip_gaps_after {
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let mut state = shared.state();
            if let Some(model) = state.models.get_mut(&model_id)
                && model.waiting.contains_key(&seq_id)
                && let Some((lowest, _)) = model.waiting.first_key_value()
            {
                model.next_seq = *lowest;
            }
            run_ready(&shared, &mut state, &model_id);
        });
    }
    promise(request_id)
}

/// Notes that the request with this number was refused, so that later ones need not wait.
pub(super) fn skip(state: &mut State, request: &Recorded) {
    let model_id = match request.try_pass() {
        Ok(pass) => Some(pass.model_id),
        Err(_) => serde_json::from_slice::<Value>(&request.body)
            .ok()
            .and_then(|body| Some(ModelId::from(body.get("model_id")?.as_str()?))),
    };
    if let (Some(model_id), Some(seq_id)) = (model_id, request.seq_id())
        && let Some(model) = state.models.get_mut(&model_id)
    {
        model.skipped.insert(seq_id);
    }
}

fn run_ready(shared: &Arc<Shared>, state: &mut State, model_id: &ModelId) {
    loop {
        let Some(model) = state.models.get_mut(model_id) else {
            return;
        };
        let seq_id = model.next_seq;
        let Some(job) = model.waiting.remove(&seq_id) else {
            if model.skipped.contains(&seq_id) {
                model.next_seq += 1;
                continue;
            }
            return;
        };
        model.next_seq += 1;
        state.executions.push(Execution {
            model_id: model_id.clone(),
            seq_id,
            operation: job.operation,
            request: job.request,
        });
        let outcome = (job.work)(state);
        state.settle(shared, &job.request_id, outcome, job.effect);
    }
}

/// Two submissions of one request are equal, but for one member that clients may renew.
fn same_payload(a: &[u8], b: &[u8]) -> bool {
    let without = |body: &[u8]| -> Option<Value> {
        let mut body: Value = serde_json::from_slice(body).ok()?;
        body.as_object_mut()?.remove("sampling_session_seq_id");
        Some(body)
    };
    a == b || (without(a).is_some() && without(a) == without(b))
}
