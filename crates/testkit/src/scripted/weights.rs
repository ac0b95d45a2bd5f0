//! Checkpoints: saving and loading.

use super::futures::{Outcome, promise};
use super::reply::{Reply, refuse};
use super::sampling::Sampler;
use super::script::Effect;
use super::training::{Model, submit, user_error};
use super::{Recorded, Shared, State};
use serde_json::Value;
use std::sync::Arc;
use tinkrs_types::protocol::check_ttl;
use tinkrs_types::rest::WeightsInfo;
use tinkrs_types::training::{ExternalSave, OptimizerConfig};
use tinkrs_types::{
    CheckpointKind, InvalidInput, LoraConfig, ModelId, SamplingSessionId, TinkerPath,
};
use tinkrs_wire::Body;
use tinkrs_wire::op::load_weights::{LoadWeightsRequest, LoadWeightsResult};
use tinkrs_wire::op::save_weights::{SaveWeightsRequest, SaveWeightsResult};
use tinkrs_wire::op::save_weights_external::SaveWeightsExternalRequest;
use tinkrs_wire::op::save_weights_for_sampler::{
    SaveWeightsForSamplerRequest, SaveWeightsForSamplerResult,
};
use tinkrs_wire::op::weights_info::WeightsInfoRequest;

/// The size that all external weights are said to have.
const SIZE_BYTES: u64 = 100_000;

/// A checkpoint and what a model needs to go on from it.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    path: TinkerPath,
    pub(super) base_model: String,
    pub(super) lora: LoraConfig,
    pub(super) optimizer: OptimizerConfig,
}

/// What a checkpoint is saved with.
struct Save {
    model_id: ModelId,
    kind: CheckpointKind,
    name: String,
    ttl_seconds: Option<u64>,
    overwrite: bool,
}

impl Save {
    /// Saves for ever, under a new name.
    fn new(model_id: ModelId, kind: CheckpointKind, name: String) -> Self {
        Self {
            model_id,
            kind,
            name,
            ttl_seconds: None,
            overwrite: false,
        }
    }
}

impl State {
    pub(super) fn stored(&self, path: &TinkerPath) -> Option<&Stored> {
        let mut stored = self.checkpoints.iter();
        stored.find(|stored| stored.path == *path)
    }

    /// Returns the base model of the checkpoint that a text names.
    pub(super) fn base_model_of(&self, path: &str) -> Result<(String, TinkerPath), Reply> {
        let path: TinkerPath = path.parse().map_err(|_| refuse(400, "not a path"))?;
        match self.stored(&path) {
            Some(stored) => Ok((stored.base_model.clone(), path)),
            None => Err(refuse(404, "no such checkpoint")),
        }
    }

    fn save(&mut self, save: Save) -> Result<TinkerPath, InvalidInput> {
        let path = TinkerPath::new(save.model_id.clone(), save.kind, save.name)?;
        if let Some(ttl_seconds) = save.ttl_seconds {
            check_ttl(ttl_seconds)?;
        }
        if self.stored(&path).is_some() && !save.overwrite {
            return Err(InvalidInput::new(
                "path",
                "ResourceAlreadyExists",
                "a new name",
            ));
        }
        let model = &self.models[&save.model_id];
        let stored = Stored {
            path: path.clone(),
            base_model: model.base_model.clone(),
            lora: model.lora.clone(),
            optimizer: model.optimizer.clone(),
        };
        self.checkpoints.retain(|other| other.path != path);
        self.checkpoints.push(stored);
        Ok(path)
    }

    fn saved(&mut self, save: Save, result: impl Fn(TinkerPath) -> Value) -> Outcome {
        match self.save(save) {
            Ok(path) => Outcome::Json(result(path)),
            Err(error) => Outcome::Failed(user_error(&error)),
        }
    }
}

fn tagged(body: &impl Body) -> Value {
    serde_json::from_slice(&body.encode()).expect("what was encoded")
}

/// `save_weights`
pub(super) fn save_weights(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let Ok(body) = SaveWeightsRequest::decode(&request.body) else {
        return refuse(400, "not a request to save");
    };
    let (model_id, seq_id) = (body.model_id.clone(), body.seq_id.unwrap_or(0));
    submit(shared, request, effect, model_id, seq_id, "save_weights", {
        Box::new(move |state| {
            let name = body.path.unwrap_or_else(|| "unnamed".to_owned());
            let save = Save {
                ttl_seconds: body.ttl_seconds,
                overwrite: body.overwrite,
                ..Save::new(body.model_id, CheckpointKind::Training, name)
            };
            state.saved(save, |path| tagged(&SaveWeightsResult { path }))
        })
    })
}

/// `save_weights_external`
pub(super) fn save_weights_external(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let Ok(body) = SaveWeightsExternalRequest::decode(&request.body) else {
        return refuse(400, "not a request to save");
    };
    let (model_id, seq_id) = (body.model_id.clone(), body.seq_id.unwrap_or(0));
    let work = move |state: &mut State| {
        let save = Save {
            ttl_seconds: body.ttl_seconds,
            ..Save::new(body.model_id, CheckpointKind::External, body.path)
        };
        let size_bytes = Some(SIZE_BYTES);
        state.saved(save, |path| tagged(&ExternalSave::new(path, size_bytes)))
    };
    let operation = "save_weights_external";
    submit(
        shared,
        request,
        effect,
        model_id,
        seq_id,
        operation,
        Box::new(work),
    )
}

/// `save_weights_for_sampler`
pub(super) fn save_weights_for_sampler(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let Ok(body) = SaveWeightsForSamplerRequest::decode(&request.body) else {
        return refuse(400, "not a request to save");
    };
    let (model_id, seq_id) = (body.model_id.clone(), body.seq_id.unwrap_or(0));
    let work = move |state: &mut State| match (body.path, body.sampling_session_seq_id) {
        (Some(name), None) => {
            let save = Save {
                ttl_seconds: body.ttl_seconds,
                ..Save::new(body.model_id, CheckpointKind::Sampler, name)
            };
            state.saved(save, |path| {
                tagged(&SaveWeightsForSamplerResult {
                    path: Some(path),
                    sampling_session_id: None,
                })
            })
        }
        (None, Some(number)) => {
            let (session, _) = body.model_id.session().expect("the server made the id");
            let id = SamplingSessionId::in_session(&session, number);
            let base_model = state.models[&body.model_id].base_model.clone();
            state
                .samplers
                .insert(id.clone(), Sampler::new(base_model, None));
            Outcome::Json(tagged(&SaveWeightsForSamplerResult {
                path: None,
                sampling_session_id: Some(id),
            }))
        }
        _ => Outcome::Failed(user_error(&InvalidInput::new(
            "path",
            "both or neither",
            "one of path and sampling_session_seq_id",
        ))),
    };
    let operation = "save_weights_for_sampler";
    submit(
        shared,
        request,
        effect,
        model_id,
        seq_id,
        operation,
        Box::new(work),
    )
}

/// `load_weights`
pub(super) fn load_weights(
    shared: &Arc<Shared>,
    request: &Recorded,
    effect: Option<Effect>,
) -> Reply {
    let Ok(body) = LoadWeightsRequest::decode(&request.body) else {
        return refuse(400, "not a request to load");
    };
    let Ok(path) = body.path.parse::<TinkerPath>() else {
        return refuse(400, "not a path");
    };
    match (&body.model_id, body.seq_id) {
        (Some(model_id), Some(1)) => {
            let result = LoadWeightsResult {
                path: Some(body.path.clone()),
                model_id: Some(model_id.clone()),
            };
            let work = move |state: &mut State| match state.stored(&path) {
                Some(_) => Outcome::Json(tagged(&result)),
                None => Outcome::Failed(user_error(&InvalidInput::new(
                    "path",
                    path,
                    "a checkpoint that exists",
                ))),
            };
            let model_id = model_id.clone();
            submit(
                shared,
                request,
                effect,
                model_id,
                1,
                "load_weights",
                Box::new(work),
            )
        }
        (Some(_), seq_id) => refuse(
            400,
            &format!("LoadWeights is not permitted with seq_id {seq_id:?}"),
        ),
        (None, _) => create_via_load(shared, body, &path, effect),
    }
}

fn create_via_load(
    shared: &Arc<Shared>,
    body: LoadWeightsRequest,
    path: &TinkerPath,
    effect: Option<Effect>,
) -> Reply {
    let (Some(session_id), Some(number)) = (body.session_id, body.model_seq_id) else {
        return refuse(400, "neither a model nor a session to create one in");
    };
    let mut state = shared.state();
    if let Err(reply) = state.check_session(&session_id) {
        return reply;
    }
    let model_id = ModelId::in_session(&session_id, number);
    if let Some(request_id) = state.promised.get(model_id.as_str()) {
        return promise(request_id.clone());
    }
    let Some(stored) = state.stored(path).cloned() else {
        return refuse(404, "no such checkpoint");
    };
    let request_id = state.promise(None);
    let optimizer = body.optimizer_config.unwrap_or(stored.optimizer);
    let base_model = body.base_model.unwrap_or(stored.base_model);
    let model = Model::new(base_model, stored.lora, optimizer);
    state.models.insert(model_id.clone(), model);
    state
        .promised
        .insert(model_id.as_str().to_owned(), request_id.clone());
    let result = tagged(&LoadWeightsResult {
        path: Some(body.path),
        model_id: Some(model_id),
    });
    state.settle(shared, &request_id, Outcome::Json(result), effect);
    promise(request_id)
}

/// `weights_info`
pub(super) fn weights_info(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = WeightsInfoRequest::decode(&request.body) else {
        return refuse(400, "not a request for information");
    };
    let Ok(path) = body.tinker_path.parse() else {
        return refuse(400, "not a path");
    };
    match shared.state().stored(&path) {
        Some(stored) => {
            let mut info = WeightsInfo::new(stored.base_model.as_str(), &stored.lora);
            info.optimizer_config = stored.optimizer.clone();
            Reply::json(&info)
        }
        None => refuse(404, "no such checkpoint"),
    }
}
