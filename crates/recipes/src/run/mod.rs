//! A run: a model under training, and the folder that says how it goes.
//!
//! ```text
//! RUN/config.json     what was asked for
//! RUN/journal.jsonl   what was done, for resuming
//! RUN/metrics.jsonl   the numbers of each step
//! RUN/samples.jsonl   what the model said, before and after
//! RUN/next.txt        commands for what was trained, if there are some
//! RUN/cost.json       what it cost, where that is known
//! RUN/report.html     all of it, for people
//! ```

mod checkpoints;
mod config;
mod cost;
mod evaluation;
mod folder;
mod hooks;
mod journal;
mod metrics;
mod reports;
mod samples;
mod save;
mod start;

pub use checkpoints::{Checkpoints, Ttl};
pub use config::{Adam, Adapter, Passes};
pub use cost::Cost;
pub use evaluation::{Best, Evaluation, Goal};
pub(crate) use folder::hold;
pub use folder::make_folder;
pub use hooks::{EvalReport, Hooks, Interrupt, StepReport};
use journal::SavedCheckpoint;
pub use journal::{Entry, Finish, Journal, Plan};
pub(crate) use journal::{counted, hash, hash_more, hash_start, words};
pub use metrics::{MetricsFile, Numbers, StepNumbers, read_metrics};
pub(crate) use metrics::{TOKENS, prefixed, told_apart};
pub use samples::{SampleRecord, read_samples, write_samples};
pub use save::Save;
pub(crate) use save::due;
pub(crate) use start::reference_sampler;
pub use start::{ReferenceModel, Start, sampler_of};

use crate::Error;
use evaluation::Standing;
use reports::Reports;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tinkrs::training::{LossSource, SummedLoss};
use tinkrs::{
    ForwardBackwardOutput, NAME_LABEL, RESUME_LABEL, ServiceClient, TinkerPath, TrainingClient,
    UserMetadata,
};

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
    /// How many steps the run took, if it went back to the best weights to end with them.
    pub best_of: Option<usize>,
    /// The best evaluation, if the run kept its weights.
    pub best: Option<Best>,
}

/// A model under training with its folder.
#[derive(Debug)]
pub struct Run {
    /// The model.
    pub training: TrainingClient,
    folder: PathBuf,
    /// Nobody else goes on with the run while this is open.
    _held: File,
    journal: Journal,
    metrics: MetricsFile,
    steps_done: usize,
    service: ServiceClient,
    /// When the weights were last saved, or loaded, and how many steps they had seen.
    saved: (Instant, usize),
    labels: UserMetadata,
    checkpoints: Checkpoints,
    evaluation: Evaluation,
    goal: Goal,
    standing: Standing,
    loss_source: Option<LossSource>,
    started: Instant,
    last_step: Instant,
    reports: Reports,
}

impl Run {
    /// Begins a run in a folder, or resumes the one that is there.
    ///
    /// # Errors
    /// If the folder cannot be used, has a run that is under way, with other batches or with another start, the settings contradict the
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
        let held = folder::hold(&folder)?;
        let mut journal = Journal::open(folder.join("journal.jsonl"))?;
        let resumes = journal.plan().is_some();
        if resumes {
            same_plan(&journal, &plan, &folder)?;
            // It goes on with the model and the rank of its checkpoint, whatever is asked for.
            if let Some((_, path)) = journal.last_checkpoint() {
                Start::new(path.clone()).check(service, adapter).await?;
            }
        } else {
            if let Some(start) = &adapter.from {
                start.check(service, adapter).await?;
            }
            let resume_id = Some(format!("{:032x}", fastrand::u128(..)));
            journal.write(Entry::Started { plan, resume_id })?;
        }
        let path = folder.join("config.json");
        let text = serde_json::to_string_pretty(config).map_err(std::io::Error::from);
        let written = text.and_then(|text| std::fs::write(&path, text + "\n"));
        written.map_err(Error::file("write", &path))?;
        let mut metrics = MetricsFile::open(folder.join("metrics.jsonl"))?;

        let checkpoint = journal
            .last_checkpoint()
            .map(|(steps, path)| (steps, path.clone()));
        // The server sees a new run each time. With the same id it knows that the name stays with it.
        let resume_id = journal.resume_id().map(str::to_owned);
        let labels = [
            (NAME_LABEL, adapter.name.clone()),
            (RESUME_LABEL, resume_id),
        ];
        let labels = labels
            .into_iter()
            .filter_map(|(label, value)| Some((label.to_owned(), value?)));
        let labels: UserMetadata = adapter.labels.clone().into_iter().chain(labels).collect();
        let (steps_done, training) = match (checkpoint, &adapter.from) {
            (Some((steps, path)), _) => {
                let resume = service.create_training_client_from_state_with_optimizer(path);
                (steps, resume.user_metadata(labels.clone()).await?)
            }
            (None, Some(start)) => {
                let open = start.open(service).user_metadata(labels.clone());
                (0, open.await?)
            }
            (None, None) => {
                let mut create = service.create_lora_training_client(&adapter.base_model);
                if let Some(rank) = adapter.rank {
                    create = create.rank(rank);
                }
                let create = create.seed(adapter.seed);
                (0, create.user_metadata(labels.clone()).await?)
            }
        };
        if resumes {
            metrics.drop_from(steps_done)?;
            journal.write(Entry::Resumed { steps: steps_done })?;
        }
        Ok(Self {
            reports: Reports::start(training.clone(), steps_done),
            training,
            folder,
            _held: held,
            journal,
            metrics,
            steps_done,
            service: service.clone(),
            saved: (Instant::now(), steps_done),
            labels,
            checkpoints: Checkpoints::default(),
            evaluation: Evaluation::NEVER,
            goal: Goal::LOSS,
            standing: Standing::default(),
            loss_source: None,
            started: Instant::now(),
            last_step: Instant::now(),
        })
    }

    /// Says which checkpoints stay, and for how long. By default all do that are not replaced.
    #[must_use]
    pub fn keeping(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints = checkpoints;
        self
    }

    /// Says when the run is evaluated, and by which number. By default it is not.
    #[must_use]
    pub fn evaluating(mut self, evaluation: Evaluation, goal: Goal) -> Self {
        self.standing = standing(&self.folder, &self.journal, goal);
        (self.evaluation, self.goal) = (evaluation, goal);
        self
    }

    /// Returns how the run in a folder ended, if it finished with `steps` steps or more, or stopped early as these
    /// settings ask for: there is then nothing to resume.
    ///
    /// # Errors
    /// If the folder's journal cannot be read, or the run had other batches.
    pub fn already_finished(
        folder: impl AsRef<Path>,
        plan: &Plan,
        steps: usize,
        evaluation: Evaluation,
        goal: Goal,
    ) -> Result<Option<Outcome>, Error> {
        let folder = folder.as_ref();
        let path = folder.join("journal.jsonl");
        if !path.exists() {
            return Ok(None);
        }
        let journal = Journal::open(path)?;
        let standing = standing(folder, &journal, goal);
        let Some(finish) = journal.finished().filter(|finish| {
            let taken = finish.best_of.unwrap_or(finish.steps);
            taken >= steps || standing.is_over(evaluation.early_stop)
        }) else {
            return Ok(None);
        };
        same_plan(&journal, plan, folder)?;
        Ok(Some(Outcome {
            steps: finish.steps,
            finished: true,
            sampler: Some(finish.sampler.clone()),
            checkpoint: journal.last_checkpoint().map(|(_, path)| path.clone()),
            best_of: finish.best_of,
            best: standing.best.filter(|_| evaluation.keeps_best()),
        }))
    }

    /// Returns how many steps the weights have seen.
    pub fn steps_done(&self) -> usize {
        self.steps_done
    }

    /// Returns what the steps in the weights trained on, by index.
    pub(crate) fn trained_on(&self) -> Vec<usize> {
        let steps = self.journal.surviving_steps().into_iter();
        steps.flat_map(|(_, examples)| examples.to_vec()).collect()
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
    pub fn save_due(&self, steps: usize, every: usize) -> Option<Save> {
        let (saved, steps_then) = self.saved;
        let unsaved = self.steps_done - steps_then;
        let seconds = self.checkpoints.seconds;
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
        self.reports.send(self.steps_done, numbers);
        self.metrics.write(step, numbers)
    }

    /// Writes down more numbers about a step.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn log(&mut self, step: usize, numbers: &Numbers) -> Result<(), Error> {
        self.reports.send(step, numbers);
        self.metrics.write(step, numbers)
    }

    /// Whether the present weights are to be evaluated: it is time, and a run that goes on has not done so already.
    pub(crate) fn eval_due(&self, is_last: bool) -> bool {
        let (every, step) = (self.evaluation.every, self.steps_done);
        (due(every, step) || (is_last && every > 0)) && !self.has_number(step, self.goal.number)
    }

    /// Writes down how good the present weights are. If they are the best so far and that matters, saves them.
    ///
    /// Every submitted step must have been [`step_done`](Self::step_done).
    ///
    /// # Errors
    /// If it cannot be written, or the checkpoint cannot be saved.
    pub async fn evaluated(
        &mut self,
        numbers: Numbers,
        hooks: &mut Hooks<'_>,
    ) -> Result<(), Error> {
        let steps = self.steps_done;
        self.log(steps, &numbers)?;
        let value = numbers.get(self.goal.number).copied();
        let value = value.unwrap_or(f64::NAN);
        let is_best = self.standing.add(steps, value, self.goal);
        if is_best && self.evaluation.keeps_best() {
            self.checkpoint().await?;
        }
        hooks.eval(&EvalReport {
            steps,
            numbers,
            is_best,
        });
        Ok(())
    }

    /// Whether the run stops before its time, since it gets no better.
    pub fn stops_early(&self) -> bool {
        self.standing.is_over(self.evaluation.early_stop)
    }

    /// Returns whether a number was measured before a step: a run that goes on need not do so again.
    fn has_number(&self, step: usize, name: &str) -> bool {
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
        // One of an earlier part of the run belongs to another run on the server, which has another name.
        let is_this = |saved: &SavedCheckpoint| {
            saved.steps == steps && saved.path.run() == self.training.model_id()
        };
        let path = match self.journal.checkpoints().pop().filter(is_this) {
            Some(saved) if !saved.temporary || save == Save::Replace => return Ok(saved.path),
            // It is there already, and stays from now on.
            Some(saved) => saved.path,
            None => {
                let state = self.training.save_state(format!("step-{steps:06}"));
                match self.checkpoints.ttl {
                    Some(ttl) => state.ttl(ttl.duration()).await?,
                    None => state.await?,
                }
            }
        };
        self.journal.write(Entry::Checkpoint {
            steps,
            path: path.clone(),
            temporary: save == Save::Replace,
        })?;
        self.saved = (Instant::now(), steps);
        self.delete_surplus().await?;
        Ok(path)
    }

    /// Deletes checkpoints of this run that need not stay, from the server. One that cannot be deleted only takes
    /// room: it is tried again next time.
    async fn delete_surplus(&mut self) -> Result<(), Error> {
        let best = self.standing.best.filter(|_| self.evaluation.keeps_best());
        let saved = self.journal.checkpoints();
        let surplus = self
            .checkpoints
            .surplus(&saved, best.map(|best| best.steps));
        let rest = self.service.create_rest_client();
        for path in surplus {
            if checkpoints::delete(&rest, path).await {
                self.journal.write(Entry::Deleted { path: path.clone() })?;
            }
        }
        Ok(())
    }

    /// Goes back to the best weights, if they are not the present ones, to end with them.
    async fn go_back_to_best(&mut self) -> Result<(), Error> {
        let best = self.standing.best.map(|best| best.steps);
        let Some(best) = best.filter(|best| *best != self.steps_done) else {
            return Ok(());
        };
        let saved = self.journal.checkpoints();
        let mut saved = saved.into_iter().rev();
        let Some(saved) = saved.find(|saved| saved.steps == best) else {
            return Ok(());
        };
        let service = &self.service;
        let resume = service.create_training_client_from_state_with_optimizer(saved.path);
        self.training = resume.user_metadata(self.labels.clone()).await?;
        self.steps_done = best;
        self.journal.write(Entry::Resumed { steps: best })
    }

    /// Ends the run: a checkpoint in any case, and weights to sample from if it is finished. A run that may stop early
    /// ends with its best weights.
    ///
    /// # Errors
    /// If they cannot be saved.
    pub async fn end(mut self, finished: bool) -> Result<Outcome, Error> {
        let taken = self.steps_done;
        if finished && self.evaluation.early_stop > 0 {
            self.go_back_to_best().await?;
        }
        let checkpoint = self.checkpoint().await?;
        let mut sampler = None;
        let best_of = (taken != self.steps_done).then_some(taken);
        if finished {
            let save = self.training.save_weights_for_sampler("final");
            let path = match self.checkpoints.ttl {
                Some(ttl) => save.ttl(ttl.duration()).await?,
                None => save.await?,
            };
            self.journal.write(Entry::Finished {
                steps: self.steps_done,
                sampler: path.clone(),
                best_of,
            })?;
            sampler = Some(path);
        }
        self.reports.finish().await;
        Ok(Outcome {
            steps: self.steps_done,
            finished,
            sampler,
            checkpoint: Some(checkpoint),
            best_of,
            best: self.standing.best.filter(|_| self.evaluation.keeps_best()),
        })
    }
}

/// Returns what the evaluations of the run in a folder say.
fn standing(folder: &Path, journal: &Journal, goal: Goal) -> Standing {
    let metrics = read_metrics(folder.join("metrics.jsonl")).unwrap_or_default();
    Standing::of_run(&metrics, &journal.checkpoints(), goal)
}

/// Refuses to resume a run that began with other batches or other weights.
fn same_plan(journal: &Journal, plan: &Plan, folder: &Path) -> Result<(), Error> {
    match journal.plan().and_then(|earlier| earlier.difference(plan)) {
        Some(problem) => Err(Error::resume(folder, problem)),
        None => Ok(()),
    }
}
