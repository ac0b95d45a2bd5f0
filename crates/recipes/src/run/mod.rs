//! A run: a model under training, and the folder that says how it goes.
//!
//! ```text
//! RUN/config.json     what was asked for
//! RUN/journal.jsonl   what was done, for resuming
//! RUN/metrics.jsonl   the numbers of each step
//! RUN/samples.jsonl   what the model said, before and after
//! RUN/report.html     all of it, for people
//! ```

mod config;
mod folder;
mod hooks;
mod journal;
mod metrics;
mod samples;
mod save;
mod start;

pub use config::{Adam, Adapter, Passes};
pub use folder::make_folder;
pub use hooks::{Hooks, Interrupt, StepReport};
pub use journal::{Entry, Journal, Plan};
pub(crate) use journal::{counted, hash};
pub use metrics::{MetricsFile, Numbers, StepNumbers, read_metrics};
pub(crate) use metrics::{TOKENS, prefixed};
pub use samples::{SampleRecord, read_samples, write_samples};
pub use save::Save;
pub(crate) use save::{check_seconds, default_checkpoint_seconds, due};
pub(crate) use start::sampler_before;
pub use start::{Start, sampler_of};

use crate::Error;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tinkrs::training::{LossSource, SummedLoss};
use tinkrs::{ForwardBackwardOutput, ServiceClient, TinkerPath, TrainingClient};

/// Refuses a setting that counts something and is 0.
pub(crate) fn at_least_one(setting: &'static str, count: usize) -> Result<(), Error> {
    if count == 0 {
        return Err(Error::setting(setting, "0, expected 1 or more"));
    }
    Ok(())
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// How many steps the weights have seen, those before resuming included.
    pub steps: usize,
    /// Whether the run did all that it was asked to. If not, it can be resumed.
    pub finished: bool,
    /// The weights to sample from, if the run finished.
    pub sampler: Option<TinkerPath>,
    /// The last checkpoint to resume from.
    pub checkpoint: Option<TinkerPath>,
}

/// A model under training with its folder.
#[derive(Debug)]
pub struct Run {
    /// The model.
    pub training: TrainingClient,
    folder: PathBuf,
    journal: Journal,
    metrics: MetricsFile,
    steps_done: usize,
    service: ServiceClient,
    /// When the weights were last saved, or loaded, and how many steps they had seen.
    saved: (Instant, usize),
    /// The last checkpoint, if the next one replaces it.
    replaceable: Option<TinkerPath>,
    loss_source: Option<LossSource>,
    started: Instant,
    last_step: Instant,
}

impl Run {
    /// Begins a run in a folder, or resumes the one that is there.
    ///
    /// # Errors
    /// If the folder cannot be used, has a run with other batches or another start, the settings contradict the
    /// checkpoint that it starts from, or the model or checkpoint cannot be had.
    pub async fn open(
        service: &ServiceClient,
        adapter: &Adapter,
        plan: Plan,
        config: &impl Serialize,
        folder: impl AsRef<Path>,
    ) -> Result<Self, Error> {
        let folder = folder.as_ref().to_owned();
        make_folder(&folder)?;
        let mut journal = Journal::open(folder.join("journal.jsonl"))?;
        let resumes = journal.plan().is_some();
        if resumes {
            same_plan(&journal, &plan, &folder)?;
        } else {
            if let Some(start) = &adapter.from {
                start.check(service, adapter).await?;
            }
            journal.write(Entry::Started { plan })?;
        }
        let path = folder.join("config.json");
        let text = serde_json::to_string_pretty(config).map_err(std::io::Error::from);
        let written = text.and_then(|text| std::fs::write(&path, text + "\n"));
        written.map_err(Error::file("write", &path))?;
        let mut metrics = MetricsFile::open(folder.join("metrics.jsonl"))?;

        let checkpoint = journal
            .last_checkpoint()
            .map(|(steps, path)| (steps, path.clone()));
        let name = adapter.name.clone().map(|name| ("name".to_owned(), name));
        let labels = name.into_iter().collect();
        let (steps_done, training) = match (checkpoint, &adapter.from) {
            (Some((steps, path)), _) => {
                let resume = service.create_training_client_from_state_with_optimizer(path);
                (steps, resume.user_metadata(labels).await?)
            }
            (None, Some(start)) => (0, start.open(service).user_metadata(labels).await?),
            (None, None) => {
                let mut create = service.create_lora_training_client(&adapter.base_model);
                if let Some(rank) = adapter.rank {
                    create = create.rank(rank);
                }
                let create = create.seed(adapter.seed);
                (0, create.user_metadata(labels).await?)
            }
        };
        if resumes {
            metrics.drop_from(steps_done)?;
            journal.write(Entry::Resumed { steps: steps_done })?;
        }
        Ok(Self {
            training,
            folder,
            journal,
            metrics,
            steps_done,
            service: service.clone(),
            saved: (Instant::now(), steps_done),
            replaceable: None,
            loss_source: None,
            started: Instant::now(),
            last_step: Instant::now(),
        })
    }

    /// Returns how the run in a folder ended, if it finished with `steps` steps or more: there is
    /// then nothing to resume.
    ///
    /// # Errors
    /// If the folder's journal cannot be read, or the run had other batches.
    pub fn already_finished(
        folder: impl AsRef<Path>,
        plan: &Plan,
        steps: usize,
    ) -> Result<Option<Outcome>, Error> {
        let folder = folder.as_ref();
        let path = folder.join("journal.jsonl");
        if !path.exists() {
            return Ok(None);
        }
        let journal = Journal::open(path)?;
        let Some((done, sampler)) = journal.finished().filter(|(done, _)| *done >= steps) else {
            return Ok(None);
        };
        same_plan(&journal, plan, folder)?;
        Ok(Some(Outcome {
            steps: done,
            finished: true,
            sampler: Some(sampler.clone()),
            checkpoint: journal.last_checkpoint().map(|(_, path)| path.clone()),
        }))
    }

    /// Returns how many steps the weights have seen.
    pub fn steps_done(&self) -> usize {
        self.steps_done
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns how long this part of the run has taken.
    pub fn elapsed_seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns how many tokens the step had that ends now, and how fast it was.
    ///
    /// The time of a step is the time since the step before ended: with several steps under way, the
    /// wait for one of them is not what a step takes.
    pub fn speed(&mut self, tokens: f64) -> Numbers {
        let before = std::mem::replace(&mut self.last_step, Instant::now());
        let seconds = (self.last_step - before).as_secs_f64();
        Numbers::from([
            (TOKENS.to_owned(), tokens),
            ("tokens_per_second".to_owned(), tokens / seconds),
            ("elapsed_seconds".to_owned(), self.elapsed_seconds()),
        ])
    }

    /// Returns the summed loss of a cross-entropy pass over datums with these weights. If the server does not
    /// report it as Tinker does, writes down what it was read from, once.
    ///
    /// # Errors
    /// If the output has nothing to read it from, or that cannot be written.
    pub fn loss(
        &mut self,
        output: &ForwardBackwardOutput,
        weights: &[impl AsRef<[f32]>],
    ) -> Result<f64, Error> {
        let loss = output.loss_with_weights(weights);
        let SummedLoss { value, source } = loss.ok_or(Error::Missing { what: "loss" })?;
        self.loss_source = Some(source);
        if source != LossSource::LossSum && self.journal.loss_source() != Some(source) {
            self.journal.write(Entry::LossFrom { source })?;
        }
        Ok(value)
    }

    /// Returns whether a checkpoint is to be saved when `steps` steps are done, and whether it is to stay:
    /// one every so many steps stays, one because of the time does not.
    pub fn save_due(&self, steps: usize, every: usize, seconds: f64) -> Option<Save> {
        let (saved, steps_then) = self.saved;
        let unsaved = self.steps_done - steps_then;
        save::due_now(every, steps, saved.elapsed(), unsaved, seconds)
    }

    /// Finishes a step: writes it down, saves a checkpoint if asked to, and calls the hooks.
    ///
    /// `examples` are what the step trained on, by index; `steps` is how many the run takes in all.
    /// When a checkpoint is saved, no later step may have been submitted.
    ///
    /// # Errors
    /// If it cannot be written, or the checkpoint cannot be saved.
    pub async fn finish_step(
        &mut self,
        examples: Vec<usize>,
        numbers: Numbers,
        steps: usize,
        save: Option<Save>,
        hooks: &mut Hooks<'_>,
    ) -> Result<(), Error> {
        let step = self.steps_done;
        self.step_done(examples, &numbers)?;
        if let Some(save) = save {
            self.save(save).await?;
        }
        hooks.step(&StepReport {
            step,
            steps,
            numbers,
            loss_source: self.loss_source,
        });
        Ok(())
    }

    /// Writes down that a step was applied, with its numbers.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn step_done(&mut self, examples: Vec<usize>, numbers: &Numbers) -> Result<(), Error> {
        let step = self.steps_done;
        self.journal.write(Entry::Step { step, examples })?;
        self.steps_done += 1;
        self.metrics.write(step, numbers)
    }

    /// Writes down more numbers about a step.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn log(&mut self, step: usize, numbers: &Numbers) -> Result<(), Error> {
        self.metrics.write(step, numbers)
    }

    /// Returns whether a number was measured before a step: a run that goes on need not do so again.
    pub(crate) fn has_number(&self, step: usize, name: &str) -> bool {
        let metrics = read_metrics(self.folder.join("metrics.jsonl"));
        metrics.is_ok_and(|steps| {
            let numbers = steps.get(&step);
            numbers.is_some_and(|numbers| numbers.contains_key(name))
        })
    }

    /// Saves the weights and the optimizer, so that the run can be resumed from here.
    ///
    /// Every submitted step must have been [`step_done`](Self::step_done).
    ///
    /// # Errors
    /// If they cannot be saved.
    pub async fn checkpoint(&mut self) -> Result<TinkerPath, Error> {
        self.save(Save::Keep).await
    }

    async fn save(&mut self, save: Save) -> Result<TinkerPath, Error> {
        let steps = self.steps_done;
        let path = self.training.save_state(format!("step-{steps:06}")).await?;
        self.journal.write(Entry::Checkpoint {
            steps,
            path: path.clone(),
        })?;
        self.saved = (Instant::now(), steps);
        let replaceable = (save == Save::Replace).then(|| path.clone());
        // From here on the journal names the new one. The old one can only take room, so it does not matter
        // if it stays.
        if let Some(old) = std::mem::replace(&mut self.replaceable, replaceable) {
            let rest = self.service.create_rest_client();
            let _ = rest.delete_checkpoint(&old).await;
        }
        Ok(path)
    }

    /// Ends the run: a checkpoint in any case, and weights to sample from if it is finished.
    ///
    /// # Errors
    /// If they cannot be saved.
    pub async fn end(mut self, finished: bool) -> Result<Outcome, Error> {
        let saved = self
            .journal
            .last_checkpoint()
            .filter(|(steps, _)| *steps == self.steps_done);
        let checkpoint = match saved.map(|(_, path)| path.clone()) {
            Some(path) => path,
            None => self.checkpoint().await?,
        };
        let mut sampler = None;
        if finished {
            let path = self.training.save_weights_for_sampler("final").await?;
            self.journal.write(Entry::Finished {
                steps: self.steps_done,
                sampler: path.clone(),
            })?;
            sampler = Some(path);
        }
        Ok(Outcome {
            steps: self.steps_done,
            finished,
            sampler,
            checkpoint: Some(checkpoint),
        })
    }
}

/// Refuses to resume a run that began with other batches or other weights.
fn same_plan(journal: &Journal, plan: &Plan, folder: &Path) -> Result<(), Error> {
    match journal.plan().and_then(|earlier| earlier.difference(plan)) {
        Some(problem) => Err(Error::resume(folder, problem)),
        None => Ok(()),
    }
}
