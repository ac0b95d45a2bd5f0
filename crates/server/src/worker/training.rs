//! Training runs and their operations.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tinkrs_engine::{Adapter, Model, TrainState, TrainingRun, peft};
use tinkrs_types::{AdamParams, Datum, LoraConfig, LossFn, ModelId, SamplingSessionId, TinkerPath};
use tinkrs_wire::Body;
use tinkrs_wire::op::create_model::CreateModelResult;
use tinkrs_wire::op::load_weights::LoadWeightsResult;
use tinkrs_wire::op::save_weights::SaveWeightsResult;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerResult;
use tinkrs_wire::op::unload_model::UnloadModelResult;

use super::{TrainJob, failure};
use crate::checkpoints::{Checkpoints, NewCheckpoint, SaveError};
use crate::error::chain;
use crate::futures::Outcome;

/// The file that holds everything a run needs to go on.
const STATE_FILE: &str = "state.safetensors";

/// What can be done to a training run.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Creates it.
    Create(LoraConfig),
    /// Computes a loss, and its gradients if asked to.
    Pass {
        data: Vec<Datum>,
        loss: LossFn,
        forward_only: bool,
    },
    /// Applies the gradients.
    OptimStep(AdamParams),
    /// Saves everything.
    SaveWeights(NewCheckpoint),
    /// Saves the adapter under a name.
    SaveNamedSampler(NewCheckpoint),
    /// Saves the adapter for one sampling session.
    SaveSampler {
        sampler: SamplingSessionId,
        folder: PathBuf,
    },
    /// Loads what was saved.
    LoadWeights { path: TinkerPath, optimizer: bool },
    /// Frees its memory.
    Unload,
}

/// An adapter that was just saved, and where.
pub(super) type NewAdapter = (PathBuf, Arc<Adapter>);

/// The training runs of one base model.
pub(super) struct Training {
    base_model: String,
    model: Arc<Model>,
    checkpoints: Arc<Checkpoints>,
    runs: HashMap<ModelId, TrainingRun>,
}

impl Training {
    pub(super) fn new(base_model: &str, model: Arc<Model>, checkpoints: Arc<Checkpoints>) -> Self {
        Self {
            base_model: base_model.to_owned(),
            model,
            checkpoints,
            runs: HashMap::new(),
        }
    }

    /// Runs an operation to its end. Returns an adapter that it saved for sampling.
    pub(super) fn run(&mut self, job: TrainJob) -> Option<NewAdapter> {
        let TrainJob {
            model_id,
            operation,
            answer,
            permit,
        } = job;
        let mut new_adapter = None;
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.execute(&model_id, operation, &mut new_adapter)
        }));
        // The queue has room as soon as its client can know.
        drop(permit);
        answer.finish(match result {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => error.into_outcome(),
            Err(_) => {
                // What the panic left behind may be half an update.
                self.runs.remove(&model_id);
                tracing::error!(model.id = %model_id, "an operation panicked; its model is lost");
                Outcome::server_error(format!(
                    "an internal error ended model `{model_id}`; load a checkpoint into a new one"
                ))
            }
        });
        new_adapter
    }

    pub(super) fn forget(&mut self, models: &[ModelId]) {
        for model in models {
            self.runs.remove(model);
        }
    }

    fn execute(
        &mut self,
        id: &ModelId,
        operation: Operation,
        new_adapter: &mut Option<NewAdapter>,
    ) -> Result<Outcome, Failure> {
        if let Operation::Create(config) = &operation {
            let run = TrainingRun::lora(Arc::clone(&self.model), config)?;
            self.runs.insert(id.clone(), run);
            let model_id = id.clone();
            return Ok(json(&CreateModelResult { model_id }));
        }
        let Some(run) = self.runs.get_mut(id) else {
            return Err(Failure::NoModel(id.clone()));
        };
        match operation {
            Operation::Create(_) => unreachable!("handled above"),
            Operation::Pass {
                data,
                loss,
                forward_only,
            } => {
                let output = match forward_only {
                    true => run.forward(&data, &loss)?,
                    false => run.forward_backward(&data, &loss)?,
                };
                Ok(Outcome::Pass(Arc::new(output)))
            }
            Operation::OptimStep(params) => Ok(json_value(&run.optim_step(&params)?)),
            Operation::SaveWeights(new) => {
                let saved = self.checkpoints.save(new, |folder| {
                    run.state().write(&folder.join(STATE_FILE))?;
                    save_adapter(run, &self.base_model, folder)
                })?;
                let path = saved.checkpoint.tinker_path;
                Ok(json(&SaveWeightsResult { path }))
            }
            Operation::SaveNamedSampler(new) => {
                let saved = self
                    .checkpoints
                    .save(new, |folder| save_adapter(run, &self.base_model, folder))?;
                *new_adapter = run.adapter().map(|adapter| (saved.folder, adapter));
                Ok(json(&SaveWeightsForSamplerResult {
                    path: Some(saved.checkpoint.tinker_path),
                    sampling_session_id: None,
                }))
            }
            Operation::SaveSampler { sampler, folder } => {
                self.checkpoints.fill(&folder, |partial| {
                    save_adapter(run, &self.base_model, partial)
                })?;
                *new_adapter = run.adapter().map(|adapter| (folder, adapter));
                Ok(json(&SaveWeightsForSamplerResult {
                    path: None,
                    sampling_session_id: Some(sampler),
                }))
            }
            Operation::LoadWeights { path, optimizer } => {
                let saved = self.checkpoints.find(&path);
                let saved = saved.ok_or_else(|| Failure::NoCheckpoint(path.clone()))?;
                let state = TrainState::read(&saved.folder.join(STATE_FILE))?;
                match optimizer {
                    true => run.restore(&state)?,
                    false => run.restore_weights(&state)?,
                }
                Ok(json(&LoadWeightsResult {
                    path: Some(path.to_string()),
                    model_id: Some(id.clone()),
                }))
            }
            Operation::Unload => {
                self.runs.remove(id);
                let model_id = id.clone();
                Ok(json(&UnloadModelResult { model_id }))
            }
        }
    }
}

fn save_adapter(
    run: &TrainingRun,
    base_model: &str,
    folder: &Path,
) -> Result<(), tinkrs_engine::Error> {
    let adapter = run
        .to_peft(base_model)
        .expect("every run of this server trains an adapter");
    peft::save(folder, &adapter, run.model().config())
}

fn json(body: &impl Body) -> Outcome {
    Outcome::Json(Bytes::from(body.encode()))
}

fn json_value(value: &impl Serialize) -> Outcome {
    let bytes = serde_json::to_vec(value).expect("results have text keys");
    Outcome::Json(Bytes::from(bytes))
}

enum Failure {
    NoModel(ModelId),
    NoCheckpoint(TinkerPath),
    Save(SaveError),
    Engine(tinkrs_engine::Error),
}

impl Failure {
    fn into_outcome(self) -> Outcome {
        match self {
            Self::NoModel(id) => Outcome::user_error(format!(
                "model `{id}` has no weights: it was unloaded, or could not be created"
            )),
            Self::NoCheckpoint(path) => {
                Outcome::user_error(format!("there is no checkpoint `{path}`"))
            }
            Self::Save(SaveError::Engine(error)) | Self::Engine(error) => failure(&error),
            Self::Save(error @ SaveError::Exists(..)) => Outcome::user_error(error.to_string()),
            Self::Save(error @ SaveError::Io(_)) => Outcome::server_error(chain(&error)),
        }
    }
}

impl From<SaveError> for Failure {
    fn from(error: SaveError) -> Self {
        Self::Save(error)
    }
}

impl From<tinkrs_engine::Error> for Failure {
    fn from(error: tinkrs_engine::Error) -> Self {
        Self::Engine(error)
    }
}
