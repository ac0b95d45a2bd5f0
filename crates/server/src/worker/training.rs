//! Training runs and their operations.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use tinkrs_engine::{Adapter, Model, TrainState, TrainingRun, peft};
use tinkrs_types::rest::WeightsInfo;
use tinkrs_types::training::ExternalSave;
use tinkrs_types::{ModelId, SessionId, TinkerPath};
use tinkrs_wire::op::create_model::CreateModelResult;
use tinkrs_wire::op::load_weights::LoadWeightsResult;
use tinkrs_wire::op::save_weights::SaveWeightsResult;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerResult;
use tinkrs_wire::op::unload_model::UnloadModelResult;

use super::TrainJob;
use super::failed::Failure;
use super::operation::{Loss, Operation};
use super::snapshots::{self, Snapshots};
use crate::auth::Owner;
use crate::checkpoints::Checkpoints;
use crate::error::chain;
use crate::metrics::Family;
use crate::outcome::Outcome;
use crate::record::{SamplerRecord, SavedCheckpoint};
use crate::registry::Sampler;
use crate::results::Answer;
use crate::shared::Shared;
use crate::store::{Change, Ending, Usage, UsageKind, files};

/// The file that holds everything a run needs to go on.
pub(crate) const STATE_FILE: &str = "state.safetensors";

/// An adapter that was just saved, and where.
pub(super) type NewAdapter = (PathBuf, Arc<Adapter>);

/// What an operation brought about.
struct Done {
    outcome: Outcome,
    /// A checkpoint, whose files are written.
    saved: Option<SavedCheckpoint>,
    /// A sampling session, whose files are written.
    sampler: Option<SamplerRecord>,
    /// Whether a snapshot of the run was written right after it.
    with_snapshot: bool,
    closes_run: bool,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            saved: None,
            sampler: None,
            with_snapshot: false,
            closes_run: false,
        }
    }
}

/// The training runs of one base model.
pub(super) struct Training {
    base_model: String,
    model: Arc<Model>,
    shared: Arc<Shared>,
    runs: HashMap<ModelId, TrainingRun>,
    snapshots: Snapshots,
}

impl Training {
    pub(super) fn new(
        base_model: &str,
        model: Arc<Model>,
        shared: Arc<Shared>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            base_model: base_model.to_owned(),
            model,
            snapshots: Snapshots::start(Arc::clone(&shared))?,
            shared,
            runs: HashMap::new(),
        })
    }

    /// Takes a run up again after a restart.
    pub(super) fn restore(&mut self, id: ModelId, number: i64) {
        let path = self.shared.store.files().snapshot(&id, number);
        let restored = TrainState::read(&path)
            .and_then(|state| TrainingRun::from_state(Arc::clone(&self.model), &state));
        match restored {
            Ok(run) => {
                self.runs.insert(id, run);
            }
            Err(error) => {
                tracing::error!(model.id = %id, error = %chain(&error), "could not restore a model");
                self.close(&id, "its snapshot could not be read after a restart", true);
            }
        }
    }

    /// Runs an operation to its end. Returns an adapter that it saved for sampling.
    pub(super) fn run(&mut self, job: TrainJob) -> Option<NewAdapter> {
        let (start, begun) = (Instant::now(), Timestamp::now());
        let TrainJob {
            model_id,
            owner,
            session,
            number,
            operation,
            answer,
            permit,
        } = job;
        let changes_run = operation.changes_run();
        let (name, tokens) = (operation.name(), operation.tokens());
        let mut new_adapter = None;
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.execute((&model_id, number), owner, operation, &mut new_adapter)
        }));
        let succeeded = matches!(result, Ok(Ok(_)));
        let done = match result {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => error.into_outcome().into(),
            Err(_) => {
                // What the panic left behind may be half an update.
                tracing::error!(model.id = %model_id, "an operation panicked; its model is lost");
                self.runs.remove(&model_id);
                self.close(&model_id, "an internal error ended it", true);
                Outcome::server_error(format!(
                    "an internal error ended model `{model_id}`; load a checkpoint into a new one"
                ))
                .into()
            }
        };

        let metrics = &self.shared.metrics;
        let result = if succeeded { "done" } else { "failed" };
        metrics.count(Family::Operations, &[name, result]);
        metrics.observe(Family::OperationSeconds, &[name], start.elapsed());
        metrics.add(Family::Tokens, &["trained"], tokens as f64);

        let mut ending = Ending::from(done.outcome);
        ending.of_run = Some((model_id.clone(), number));
        ending.with_snapshot = done.with_snapshot;
        ending.begun = Some((session.clone(), begun));
        if succeeded && tokens > 0 {
            ending.usage.push(Usage {
                owner,
                base_model: self.base_model.clone(),
                session: Some(session),
                kind: UsageKind::Training,
                tokens,
            });
        }
        if done.closes_run {
            // Before the result is told: whoever has it must not find the model open.
            ending
                .also
                .extend(self.closed(&model_id, "it was unloaded", false));
        }
        // The queue has room as soon as its client can know.
        drop(permit);
        if let Some(answer) = answer {
            match (done.sampler, done.saved) {
                (Some(sampler), _) => self.finish_sampler(answer, ending, sampler),
                (None, Some(saved)) => self.finish_checkpoint(answer, ending, saved),
                (None, None) => answer.finish(ending),
            }
        }
        if changes_run
            && succeeded
            && let Some(run) = self.runs.get(&model_id)
        {
            let time = start.elapsed();
            self.snapshots.note(&model_id, number, run, time);
        }
        new_adapter
    }

    /// Knows a sampling session before its id is told, and not at all if it cannot be stored.
    fn finish_sampler(&self, answer: Answer, mut ending: Ending, sampler: SamplerRecord) {
        let (id, folder) = (sampler.id.clone(), sampler.own_folder().cloned());
        ending.also.push(Change::Sampler(sampler.clone()));
        let mut registry = self.shared.registry();
        registry.samplers.insert(id.clone(), Sampler::new(sampler));
        drop(registry);
        if let Err(unstored) = answer.try_finish(ending) {
            self.shared.registry().samplers.remove(&id);
            if let Some(folder) = folder {
                files::remove(&self.shared.checkpoints.folder(&folder));
            }
            unstored.fail();
        }
    }

    /// Lists a checkpoint before its path is told, and not at all if that cannot be stored.
    fn finish_checkpoint(&self, answer: Answer, mut ending: Ending, saved: SavedCheckpoint) {
        let checkpoints = &self.shared.checkpoints;
        let (path, folder, owner) = (saved.path().clone(), saved.folder.clone(), saved.owner);
        let (before, change) = checkpoints.replace(saved);
        ending.also.push(change);
        let Err(unstored) = answer.try_finish(ending) else {
            let store = &self.shared.store;
            store.remember_checkpoint(owner, "checkpoint_create", &path);
            return;
        };
        match before {
            Some(before) => checkpoints.add(before),
            None => drop(checkpoints.take(|saved| *saved.path() == path)),
        }
        files::remove(&checkpoints.folder(&folder));
        unstored.fail();
    }

    /// Frees what a finished session held, after the operations that it had queued. Returns the
    /// folders of adapters that nobody else uses.
    pub(super) fn forget(&mut self, session: &SessionId) -> Vec<PathBuf> {
        let mut registry = self.shared.registry();
        let runs = registry.runs.values().map(|run| &run.record);
        let runs = runs.filter(|run| run.session == *session && run.base_model == self.base_model);
        let open = runs.filter(|run| run.closed.is_none());
        let open: Vec<_> = open.map(|run| run.id.clone()).collect();
        let samplers = registry.samplers.extract_if(|_, Sampler { record, .. }| {
            record.session == *session
                && record.base_model == self.base_model
                && record.own_folder().is_some()
        });
        let samplers: Vec<_> = samplers.map(|(_, sampler)| sampler.record).collect();
        drop(registry);
        for id in open {
            self.runs.remove(&id);
            self.close(&id, "its session is finished", false);
        }
        let mut folders = Vec::new();
        for sampler in samplers {
            let folder = sampler.own_folder();
            folders.extend(folder.map(|folder| self.shared.checkpoints.folder(folder)));
            self.shared.results.feeds.forget(&sampler.id);
            self.shared.store.note(Change::SamplerGone(sampler.id));
        }
        folders
    }

    /// Notes that a run has no weights any more, and stores it.
    fn close(&mut self, id: &ModelId, why: &str, corrupted: bool) {
        if let Some(change) = self.closed(id, why, corrupted) {
            self.shared.store.note(change);
        }
    }

    /// Notes that a run has no weights any more, and returns what has to be stored.
    fn closed(&mut self, id: &ModelId, why: &str, corrupted: bool) -> Option<Change> {
        self.snapshots.forget(id);
        let mut registry = self.shared.registry();
        let run = registry.runs.get_mut(id)?;
        run.record.closed = Some(why.to_owned());
        run.record.corrupted |= corrupted;
        Some(Change::RunClosed(run.record.clone()))
    }

    fn execute(
        &mut self,
        (id, number): (&ModelId, i64),
        owner: Owner,
        operation: Operation,
        new_adapter: &mut Option<NewAdapter>,
    ) -> Result<Done, Failure> {
        match &operation {
            Operation::Create(config) => {
                let run = TrainingRun::lora(Arc::clone(&self.model), config)?;
                self.runs.insert(id.clone(), run);
                let model_id = id.clone();
                return Ok(Outcome::body(&CreateModelResult { model_id }).into());
            }
            Operation::LoadWeights { .. } if !self.runs.contains_key(id) => {
                return Err(Failure::NoModel(id.clone()));
            }
            Operation::CreateFrom { path, optimizer }
            | Operation::LoadWeights { path, optimizer } => {
                return self.load((id, number), owner, path, *optimizer);
            }
            _ => {}
        }
        let Some(run) = self.runs.get_mut(id) else {
            return Err(Failure::NoModel(id.clone()));
        };
        let checkpoints = &self.shared.checkpoints;
        match operation {
            Operation::Create(_) | Operation::CreateFrom { .. } | Operation::LoadWeights { .. } => {
                unreachable!("handled above")
            }
            Operation::Pass {
                data,
                loss,
                forward_only,
            } => {
                let output = match (&loss, forward_only) {
                    (Loss::BuiltIn(loss), true) => run.forward(&data, loss)?,
                    (Loss::BuiltIn(loss), false) => run.forward_backward(&data, loss)?,
                    (Loss::Uploaded(loss), true) => run.forward_custom(&data, &**loss)?,
                    (Loss::Uploaded(loss), false) => run.forward_backward_custom(&data, &**loss)?,
                };
                Ok(Outcome::pass(output).into())
            }
            Operation::OptimStep(params) => Ok(Outcome::json(&run.optim_step(&params)?).into()),
            Operation::SaveWeights(new) => {
                let saved = checkpoints.fill(new, |folder| {
                    run.state().write(&folder.join(STATE_FILE))?;
                    save_adapter(run, &self.base_model, folder)
                })?;
                let path = saved.path().clone();
                Ok(Done {
                    saved: Some(saved),
                    ..Outcome::body(&SaveWeightsResult { path }).into()
                })
            }
            Operation::SaveNamedSampler(new) => {
                let saved =
                    checkpoints.fill(new, |folder| save_adapter(run, &self.base_model, folder))?;
                let folder = checkpoints.folder(&saved.folder);
                *new_adapter = run.adapter().map(|adapter| (folder, adapter));
                let result = SaveWeightsForSamplerResult {
                    path: Some(saved.path().clone()),
                    sampling_session_id: None,
                };
                Ok(Done {
                    saved: Some(saved),
                    ..Outcome::body(&result).into()
                })
            }
            Operation::SaveExternal(new) => {
                let saved =
                    checkpoints.fill(new, |folder| save_adapter(run, &self.base_model, folder))?;
                let result = ExternalSave::new(saved.path().clone(), saved.checkpoint.size_bytes);
                Ok(Done {
                    saved: Some(saved),
                    ..Outcome::json(&result).into()
                })
            }
            Operation::SaveSampler(sampler) => {
                let mut registry = self.shared.registry();
                if registry.samplers.contains_key(&sampler) {
                    return Err(Failure::SamplerExists(sampler));
                }
                let session = registry
                    .run(owner, id)
                    .map(|run| run.record.session.clone());
                drop(registry);
                let Ok(session) = session else {
                    return Err(Failure::NoModel(id.clone()));
                };
                let folder = Checkpoints::sampler_folder(sampler.as_str());
                checkpoints.fill_folder(&folder, |partial| {
                    save_adapter(run, &self.base_model, partial)
                })?;
                let whole = checkpoints.folder(&folder);
                *new_adapter = run.adapter().map(|adapter| (whole, adapter));
                let result = SaveWeightsForSamplerResult {
                    path: None,
                    sampling_session_id: Some(sampler.clone()),
                };
                Ok(Done {
                    sampler: Some(SamplerRecord {
                        id: sampler,
                        owner,
                        session,
                        base_model: self.base_model.clone(),
                        adapter: Some(folder),
                        path: None,
                        clones: 0,
                    }),
                    ..Outcome::body(&result).into()
                })
            }
            Operation::Unload => {
                self.runs.remove(id);
                let model_id = id.clone();
                Ok(Done {
                    closes_run: true,
                    ..Outcome::body(&UnloadModelResult { model_id }).into()
                })
            }
        }
    }

    /// Makes a run what a checkpoint is, also where an imported one has a scale or layers of its own.
    /// The checkpoint may be deleted later, so from here on the run can only be repeated with a
    /// snapshot.
    fn load(
        &mut self,
        (id, number): (&ModelId, i64),
        owner: Owner,
        path: &TinkerPath,
        optimizer: bool,
    ) -> Result<Done, Failure> {
        let saved = self.shared.checkpoints.find(owner, path);
        let saved = saved.ok_or_else(|| Failure::NoCheckpoint(path.clone()))?;
        let ours = {
            let registry = self.shared.registry();
            let run = registry.runs.get(id);
            run.map(|run| shape(&run.record.weights_info()))
        };
        let theirs = shape(&saved.info);
        if let Some(ours) = ours.filter(|ours| *ours != theirs) {
            let path = path.clone();
            return Err(Failure::OtherShape { path, theirs, ours });
        }
        let file = self
            .shared
            .checkpoints
            .folder(&saved.folder)
            .join(STATE_FILE);
        let state = TrainState::read(&file)?;
        let mut run = TrainingRun::from_state(Arc::clone(&self.model), &state)?;
        if !optimizer {
            run.restore_weights(&state)?;
        }
        let files = self.shared.store.files();
        snapshots::write(files, id, number, &run.state())?;
        self.runs.insert(id.clone(), run);
        self.snapshots.forget(id);
        let store = &self.shared.store;
        store.remember_checkpoint(owner, "checkpoint_read", path);
        let result = LoadWeightsResult {
            path: Some(path.to_string()),
            model_id: Some(id.clone()),
        };
        Ok(Done {
            with_snapshot: true,
            ..Outcome::body(&result).into()
        })
    }
}

pub(crate) fn save_adapter(
    run: &TrainingRun,
    base_model: &str,
    folder: &Path,
) -> Result<(), tinkrs_engine::Error> {
    let adapter = run
        .to_peft(base_model)
        .expect("every run of this server trains an adapter");
    peft::save(folder, &adapter, run.model().config())
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
