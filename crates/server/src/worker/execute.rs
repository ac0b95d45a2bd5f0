//! What each operation does to a training run.

use tinkrs_backend::{Pass, PassProgress, StatePart, TrainingRun};
use tinkrs_types::rest::WeightsInfo;
use tinkrs_types::training::ExternalSave;
use tinkrs_types::{AdamParams, LoraConfig, ModelId, SamplingSessionId, TinkerPath};
use tinkrs_wire::op::create_model::CreateModelResult;
use tinkrs_wire::op::load_weights::LoadWeightsResult;
use tinkrs_wire::op::save_weights::SaveWeightsResult;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerResult;
use tinkrs_wire::op::unload_model::UnloadModelResult;

use super::operation::Operation;
use super::operation_error::OperationError;
use super::snapshots;
use super::training::{Done, Job, Training, Turn};
use crate::checkpoints::{Checkpoints, NewCheckpoint};
use crate::registry::records::SamplerRecord;
use crate::results::OperationResult;

/// The file that holds everything a run needs to continue.
pub(crate) const STATE_FILE: &str = "state.safetensors";

/// Tokens of a pass that are computed before samples have their turn: enough for the kernels to be as
/// fast as with more. A single datum may be longer.
const SLICE_TOKENS: usize = 1024;

impl Training {
    pub(super) fn execute(
        &mut self,
        job: &Job,
        operation: Operation,
    ) -> Result<Turn, OperationError> {
        let done = match operation {
            Operation::Create(config) => self.create(job, &config)?,
            Operation::CreateFrom { path, optimizer } => self.load(job, &path, optimizer)?,
            Operation::Pass(request) => {
                let pass = self.run(&job.model_id)?.begin(request)?;
                return Self::advance_pass(pass);
            }
            Operation::OptimStep(params) => self.optim_step(job, &params)?,
            Operation::SaveWeights(new) => self.save_weights(job, new)?,
            Operation::SaveNamedSampler(new) => self.save_named_sampler(job, new)?,
            Operation::SaveSampler(id) => self.save_sampler(job, id)?,
            Operation::SaveExternal(new) => self.save_external(job, new)?,
            Operation::LoadWeights { path, optimizer } => {
                self.run(&job.model_id)?;
                self.load(job, &path, optimizer)?
            }
            Operation::Unload => self.unload(job)?,
        };
        Ok(done.into())
    }

    fn run(&mut self, id: &ModelId) -> Result<&mut dyn TrainingRun, OperationError> {
        match self.runs.get_mut(id) {
            Some(run) => Ok(&mut **run),
            None => Err(OperationError::NoModel(id.clone())),
        }
    }

    fn create(&mut self, job: &Job, config: &LoraConfig) -> Result<Done, OperationError> {
        let run = self.backend.create(config)?;
        let model_id = job.model_id.clone();
        self.runs.insert(model_id.clone(), run);
        Ok(OperationResult::body(&CreateModelResult { model_id }).into())
    }

    /// Computes a slice of a pass.
    pub(super) fn advance_pass(mut pass: Box<dyn Pass>) -> Result<Turn, OperationError> {
        Ok(match pass.advance(SLICE_TOKENS)? {
            PassProgress::Continue => Turn::Continue(pass),
            PassProgress::Done(output) => Done::from(OperationResult::pass(output)).into(),
        })
    }

    fn optim_step(&mut self, job: &Job, params: &AdamParams) -> Result<Done, OperationError> {
        let output = self.run(&job.model_id)?.optim_step(params)?;
        Ok(OperationResult::json(&output).into())
    }

    fn save_weights(&self, job: &Job, new: NewCheckpoint) -> Result<Done, OperationError> {
        let run = self.saved_run(job)?;
        let saved = self.shared.checkpoints.fill(new, |folder| {
            run.state().write(&folder.join(STATE_FILE))?;
            run.save_adapter(folder, &self.base_model)
        })?;
        let path = saved.path().clone();
        Ok(Done {
            saved: Some(saved),
            ..OperationResult::body(&SaveWeightsResult { path }).into()
        })
    }

    fn save_named_sampler(&self, job: &Job, new: NewCheckpoint) -> Result<Done, OperationError> {
        let run = self.saved_run(job)?;
        let checkpoints = &self.shared.checkpoints;
        let saved = checkpoints.fill(new, |folder| run.save_adapter(folder, &self.base_model))?;
        let result = SaveWeightsForSamplerResult {
            path: Some(saved.path().clone()),
            sampling_session_id: None,
        };
        Ok(Done {
            adapter: Some((checkpoints.folder(&saved.folder), run.adapter())),
            saved: Some(saved),
            ..OperationResult::body(&result).into()
        })
    }

    fn save_external(&self, job: &Job, new: NewCheckpoint) -> Result<Done, OperationError> {
        let run = self.saved_run(job)?;
        let checkpoints = &self.shared.checkpoints;
        let saved = checkpoints.fill(new, |folder| run.save_adapter(folder, &self.base_model))?;
        let result = ExternalSave::new(saved.path().clone(), saved.checkpoint.size_bytes);
        Ok(Done {
            saved: Some(saved),
            ..OperationResult::json(&result).into()
        })
    }

    fn save_sampler(&self, job: &Job, id: SamplingSessionId) -> Result<Done, OperationError> {
        let run = self.saved_run(job)?;
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
        let checkpoints = &self.shared.checkpoints;
        let folder = Checkpoints::sampler_folder(id.as_str());
        checkpoints.fill_folder(&folder, |folder| run.save_adapter(folder, &self.base_model))?;
        let result = SaveWeightsForSamplerResult {
            path: None,
            sampling_session_id: Some(id.clone()),
        };
        Ok(Done {
            adapter: Some((checkpoints.folder(&folder), run.adapter())),
            sampler: Some(SamplerRecord {
                id,
                owner: job.owner,
                session,
                base_model: self.base_model.clone(),
                adapter: Some(folder),
                path: None,
                clones: 0,
            }),
            ..OperationResult::body(&result).into()
        })
    }

    /// Returns a run that is to be saved.
    fn saved_run(&self, job: &Job) -> Result<&dyn TrainingRun, OperationError> {
        match self.runs.get(&job.model_id) {
            Some(run) => Ok(&**run),
            None => Err(OperationError::NoModel(job.model_id.clone())),
        }
    }

    fn unload(&mut self, job: &Job) -> Result<Done, OperationError> {
        let model_id = job.model_id.clone();
        if self.runs.remove(&model_id).is_none() {
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
        optimizer: bool,
    ) -> Result<Done, OperationError> {
        let (id, owner) = (&job.model_id, job.owner);
        let saved = self.shared.checkpoints.find(owner, path);
        let saved = saved.ok_or_else(|| OperationError::NoCheckpoint(path.clone()))?;
        let ours = {
            let registry = self.shared.registry();
            let run = registry.runs.get(id);
            run.map(|run| shape(&run.record.weights_info()))
        };
        let theirs = shape(&saved.info);
        if let Some(ours) = ours.filter(|ours| *ours != theirs) {
            let path = path.clone();
            return Err(OperationError::OtherShape { path, theirs, ours });
        }
        let folder = self.shared.checkpoints.folder(&saved.folder);
        let part = if optimizer {
            StatePart::Everything
        } else {
            StatePart::Weights
        };
        let run = self.backend.restore(&folder.join(STATE_FILE), part)?;
        let files = self.shared.store.files();
        snapshots::write(files, id, job.seq_id, &*run.state())?;
        self.runs.insert(id.clone(), run);
        self.note_snapshot(id, job.seq_id);
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
fn shape(info: &WeightsInfo) -> String {
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
    format!(
        "base model `{}`, rank {rank}, training {}",
        info.base_model,
        trained.join(", ")
    )
}
