//! What each operation does to a training run.

use std::path::Path;

use tinkrs_backend::{PassProgress, StatePart};
use tinkrs_types::rest::WeightsInfo;
use tinkrs_types::training::{ExternalSave, OptimizerConfig, OptimizerParams};
use tinkrs_types::{LoraConfig, SamplingSessionId, TinkerPath};
use tinkrs_wire::op::create_model::CreateModelResult;
use tinkrs_wire::op::load_weights::LoadWeightsResult;
use tinkrs_wire::op::save_weights::SaveWeightsResult;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerResult;
use tinkrs_wire::op::unload_model::UnloadModelResult;

use super::operation::Operation;
use super::operation_error::OperationError;
use super::runs::Purpose;
use super::training::{Done, Job, NewAdapter, RunningPass, Training, Turn};
use crate::checkpoints::{Checkpoints, NewCheckpoint};
use crate::registry::records::SamplerRecord;
use crate::results::OperationResult;
use crate::store::manifest::{self, About};
use crate::studio::measure::{Measured, StepFacts};

/// The file that holds everything a run needs to continue.
pub(crate) const STATE_FILE: &str = "state.safetensors";

/// Tokens of a pass that are computed before samples have their turn: enough for the kernels to be as
/// fast as with more. A single datum may be longer.
pub(crate) const SLICE_TOKENS: usize = 1024;

impl Training {
    pub(super) fn execute(
        &mut self,
        job: &Job,
        operation: Operation,
    ) -> Result<Turn, OperationError> {
        let done = match operation {
            Operation::Create { lora, optimizer } => self.create(job, &lora, &optimizer)?,
            Operation::CreateFrom { path, part } => self.load(job, &path, part, job.purpose())?,
            Operation::Pass(pass) => {
                let backward = pass.backward;
                let pass = self.runs.begin(&job.model_id, &job.request, pass)?;
                return Self::advance_pass(pass, backward);
            }
            Operation::OptimStep(params) => self.optim_step(job, &params)?,
            Operation::SaveWeights(new) => self.save_weights(job, new)?,
            Operation::SaveNamedSampler(new) => self.save_named_sampler(job, new)?,
            Operation::SaveSampler(id) => self.save_sampler(job, id)?,
            Operation::SaveExternal(new) => self.save_external(job, new)?,
            Operation::LoadWeights { path, part } => {
                if !self.runs.contains(&job.model_id) {
                    return Err(OperationError::NoModel(job.model_id.clone()));
                }
                self.load(job, &path, part, Purpose::ExistingRun)?
            }
            Operation::Unload => self.unload(job)?,
        };
        Ok(done.into())
    }

    fn create(
        &mut self,
        job: &Job,
        lora: &LoraConfig,
        optimizer: &OptimizerConfig,
    ) -> Result<Done, OperationError> {
        let model_id = job.model_id.clone();
        self.runs
            .create(&model_id, job.seq_id, (lora, optimizer), job.purpose())?;
        Ok(OperationResult::body(&CreateModelResult { model_id }).into())
    }

    /// Computes a slice of a pass.
    pub(super) fn advance_pass(
        mut running: RunningPass,
        backward: bool,
    ) -> Result<Turn, OperationError> {
        Ok(match running.pass.advance(SLICE_TOKENS)? {
            PassProgress::Continue => Turn::Continue(running),
            PassProgress::Done(output) => {
                let mut sums = running.sums;
                sums.add_result(&output.metrics);
                let measured = backward.then_some(Measured::Pass(sums));
                Done {
                    measured,
                    ..OperationResult::pass(output).into()
                }
                .into()
            }
        })
    }

    fn optim_step(&mut self, job: &Job, params: &OptimizerParams) -> Result<Done, OperationError> {
        let step = self
            .runs
            .with(&job.model_id, |run| Ok(run.optim_step(params)?))?;
        Ok(Done {
            measured: Some(Measured::Step(StepFacts::new(params, &step))),
            ..OperationResult::json(&step).into()
        })
    }

    fn save_weights(&mut self, job: &Job, new: NewCheckpoint) -> Result<Done, OperationError> {
        let (checkpoints, base_model) = (&self.shared.checkpoints, &self.base_model);
        let saved = self.runs.with(&job.model_id, |run| {
            Ok(checkpoints.fill(new, |folder| {
                run.save_state(&folder.join(STATE_FILE))?;
                run.save_adapter(folder, base_model)
            })?)
        })?;
        let path = saved.path().clone();
        Ok(Done {
            saved: Some(saved),
            ..OperationResult::body(&SaveWeightsResult { path }).into()
        })
    }

    fn save_named_sampler(
        &mut self,
        job: &Job,
        new: NewCheckpoint,
    ) -> Result<Done, OperationError> {
        let (checkpoints, base_model) = (&self.shared.checkpoints, &self.base_model);
        let (saved, adapter) = self.runs.with(&job.model_id, |run| {
            let saved = checkpoints.fill(new, |folder| run.save_adapter(folder, base_model))?;
            Ok((saved, (run.lora(), run.adapter())))
        })?;
        let result = SaveWeightsForSamplerResult {
            path: Some(saved.path().clone()),
            sampling_session_id: None,
        };
        Ok(Done {
            adapter: Some(NewAdapter::new(checkpoints.folder(&saved.folder), adapter)),
            saved: Some(saved),
            ..OperationResult::body(&result).into()
        })
    }

    fn save_external(&mut self, job: &Job, new: NewCheckpoint) -> Result<Done, OperationError> {
        let (checkpoints, base_model) = (&self.shared.checkpoints, &self.base_model);
        let saved = self.runs.with(&job.model_id, |run| {
            Ok(checkpoints.fill(new, |folder| run.save_adapter(folder, base_model))?)
        })?;
        let result = ExternalSave::new(saved.path().clone(), saved.checkpoint.size_bytes);
        Ok(Done {
            saved: Some(saved),
            ..OperationResult::json(&result).into()
        })
    }

    fn save_sampler(&mut self, job: &Job, id: SamplingSessionId) -> Result<Done, OperationError> {
        let mut registry = self.shared.registry();
        if registry.samplers.contains_key(&id) {
            return Err(OperationError::SamplerExists(id));
        }
        let session = registry
            .run(job.owner, &job.model_id)
            .map(|run| run.record.session.clone());
        drop(registry);
        let Ok(session) = session else {
            return Err(OperationError::NoModel(job.model_id.clone()));
        };
        let (checkpoints, base_model) = (&self.shared.checkpoints, &self.base_model);
        let folder = Checkpoints::sampler_folder(id.as_str());
        let mut sampler = SamplerRecord {
            id: id.clone(),
            owner: job.owner,
            session,
            base_model: self.base_model.clone(),
            adapter: Some(folder.clone()),
            path: None,
            clones: 0,
            of_run: Some((job.model_id.clone(), job.seq_id)),
            bytes: 0,
        };
        let adapter = self.runs.with(&job.model_id, |run| {
            let save = |folder: &Path| run.save_adapter(folder, base_model);
            let describe = |bytes| {
                sampler.bytes = bytes;
                About::Sampler(sampler.clone())
            };
            checkpoints.fill_folder(&folder, save, describe)?;
            Ok((run.lora(), run.adapter()))
        })?;
        let result = SaveWeightsForSamplerResult {
            path: None,
            sampling_session_id: Some(id),
        };
        Ok(Done {
            adapter: Some(NewAdapter::new(checkpoints.folder(&folder), adapter)),
            sampler: Some(sampler),
            ..OperationResult::body(&result).into()
        })
    }

    fn unload(&mut self, job: &Job) -> Result<Done, OperationError> {
        let model_id = job.model_id.clone();
        if !self.runs.remove(&model_id) {
            return Err(OperationError::NoModel(model_id));
        }
        Ok(Done {
            closes_run: true,
            ..OperationResult::body(&UnloadModelResult { model_id }).into()
        })
    }

    /// Makes a run what a checkpoint is, also where an imported one has a scale or layers of its own.
    /// The checkpoint may be deleted later, so from here on the run can only be repeated with a
    /// snapshot.
    fn load(
        &mut self,
        job: &Job,
        path: &TinkerPath,
        part: StatePart,
        purpose: Purpose,
    ) -> Result<Done, OperationError> {
        let (id, owner) = (&job.model_id, job.owner);
        let saved = self.shared.checkpoints.find(owner, path);
        let saved = saved.ok_or_else(|| OperationError::NoCheckpoint(path.clone()))?;
        let record = {
            let registry = self.shared.registry();
            let run = registry.runs.get(id);
            run.map(|run| run.record.clone())
        };
        let record = record.ok_or_else(|| OperationError::NoModel(id.clone()))?;
        let (ours, theirs) = (
            shape(&record.weights_info(), &part),
            shape(&saved.info, &part),
        );
        if ours != theirs {
            let path = path.clone();
            return Err(OperationError::OtherShape { path, theirs, ours });
        }
        let folder = self.shared.checkpoints.folder(&saved.folder);
        manifest::verify(&folder, |name| name == STATE_FILE)?;
        let state = (&*folder.join(STATE_FILE), part);
        self.runs
            .load(id, job.seq_id, &record.lora, state, purpose)?;
        if let (Some(theirs), Some(ours)) = (&saved.info.numerics, &record.numerics)
            && theirs != ours
        {
            tracing::warn!(model.id = %id, %path, theirs, ours, "loads weights that were trained in other numbers");
        }
        let store = &self.shared.store;
        store.remember_checkpoint(owner, "checkpoint_read", path);
        let result = LoadWeightsResult {
            path: Some(path.to_string()),
            model_id: Some(id.clone()),
        };
        Ok(Done {
            with_snapshot: true,
            ..OperationResult::body(&result).into()
        })
    }
}

/// Describes what a checkpoint must have in common with a model that loads it.
fn shape(info: &WeightsInfo, part: &StatePart) -> String {
    let trained = [
        ("unembed", info.train_unembed),
        ("mlp", info.train_mlp),
        ("attn", info.train_attn),
    ];
    let trained: Vec<_> = trained
        .into_iter()
        .filter(|(_, is_trained)| is_trained.unwrap_or(true))
        .map(|(name, _)| name)
        .collect();
    let rank = info.lora_rank.unwrap_or_default();
    let mut shape = format!(
        "base model `{}`, rank {rank}, training {}",
        info.base_model,
        trained.join(", ")
    );
    if *part == StatePart::Everything {
        shape += &format!(" with {}", info.optimizer_config.name());
    }
    shape
}
