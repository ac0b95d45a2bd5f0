//! Training runs: each operation from its beginning to its result.
//!
//! What an operation does is in [`execute`](super::execute). A pass is computed in slices: between them it
//! waits in `passes`, and no other operation of its owner begins.
//!
//! A run is recovered from its last snapshot and the operations since, if its backend repeats them to
//! the bit. Otherwise each operation that changes a run is followed by a snapshot before its result is
//! seen, so that there is nothing to repeat. Where runs are, and what memory they take, is in
//! [`runs`](super::runs).

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tinkrs_backend::{Adapter, Backend, Pass};
use tinkrs_types::{LoraConfig, ModelId, RequestId, SessionId};

use super::TrainJob;
use super::operation::Operation;
use super::operation_error::OperationError;
use super::runs::{Purpose, Runs};
use crate::auth::Owner;
use crate::lock::lock;
use crate::places::QueuePlace;
use crate::registry::Sampler;
use crate::registry::records::{SamplerRecord, SavedCheckpoint};
use crate::results::{OperationResult, Responder};
use crate::shared::Shared;
use crate::store::{Change, Ending, Usage, UsageKind, files};
use crate::studio::activity::Pending;
use crate::studio::measure::{Measured, PassSums};
use crate::studio::waits::Waits;
use crate::under_way::Mark;

/// How many passes may be under way: each holds its gradients.
const PASSES: usize = 16;

/// An adapter that was just saved, and where.
pub(super) struct NewAdapter {
    pub(super) folder: PathBuf,
    pub(super) lora: LoraConfig,
    pub(super) adapter: Adapter,
}

impl NewAdapter {
    pub(super) fn new(folder: PathBuf, (lora, adapter): (LoraConfig, Adapter)) -> Self {
        Self {
            folder,
            lora,
            adapter,
        }
    }
}

/// An operation under way, without what it does.
pub(super) struct Job {
    pub(super) request: RequestId,
    pub(super) model_id: ModelId,
    pub(super) owner: Owner,
    pub(super) session: SessionId,
    pub(super) seq_id: i64,
    name: &'static str,
    tokens: u64,
    changes_run: bool,
    is_repeatable: bool,
    responder: Option<Responder>,
    place: Option<QueuePlace>,
    begun: Timestamp,
    /// How long it has been computed.
    spent: Duration,
    waits: Waits,
    pending: Pending,
}

impl Job {
    /// Whether it is repeated for what it did to its run; its result is known.
    pub(super) fn is_repeat(&self) -> bool {
        self.responder.is_none()
    }

    /// Returns what a run that the operation makes is to others.
    pub(super) fn purpose(&self) -> Purpose {
        if self.is_repeat() {
            Purpose::ExistingRun
        } else {
            Purpose::NewRun
        }
    }
}

/// Where an operation is after its turn.
pub(super) enum Turn {
    /// The pass has more slices.
    Continue(RunningPass),
    Done(Box<Done>),
}

/// A pass under way, and what its data add up to.
pub(super) struct RunningPass {
    pub(super) pass: Box<dyn Pass>,
    pub(super) sums: PassSums,
}

/// What an operation brought about.
pub(super) struct Done {
    pub(super) outcome: OperationResult,
    /// What it adds to the step of its run.
    pub(super) measured: Option<Measured>,
    /// A checkpoint, whose files are written.
    pub(super) saved: Option<SavedCheckpoint>,
    /// A sampling session, whose files are written.
    pub(super) sampler: Option<SamplerRecord>,
    /// An adapter that was saved for sampling.
    pub(super) adapter: Option<NewAdapter>,
    /// Whether a snapshot of the run was written right after it.
    pub(super) with_snapshot: bool,
    pub(super) closes_run: bool,
}

impl From<OperationResult> for Done {
    fn from(outcome: OperationResult) -> Self {
        Self {
            outcome,
            measured: None,
            saved: None,
            sampler: None,
            adapter: None,
            with_snapshot: false,
            closes_run: false,
        }
    }
}

impl From<Done> for Turn {
    fn from(done: Done) -> Self {
        Self::Done(Box::new(done))
    }
}

/// The training runs of one base model.
pub(super) struct Training {
    pub(super) base_model: String,
    pub(super) shared: Arc<Shared>,
    pub(super) runs: Runs,
    mark: Arc<Mutex<Mark>>,
    /// The passes that have more slices: one of an owner, which is of one of its runs.
    passes: HashMap<Owner, (Job, RunningPass)>,
}

impl Training {
    pub(super) fn new(
        base_model: &str,
        backend: Arc<dyn Backend>,
        shared: Arc<Shared>,
        mark: Arc<Mutex<Mark>>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            base_model: base_model.to_owned(),
            runs: Runs::new(backend, Arc::clone(&shared))?,
            mark,
            shared,
            passes: HashMap::new(),
        })
    }

    /// Returns whether a pass of an owner is under way.
    pub(super) fn has_pass(&self, owner: Owner) -> bool {
        self.passes.contains_key(&owner)
    }

    /// Returns the run of an owner's pass, if one is under way.
    pub(super) fn run_of_pass(&self, owner: Owner) -> Option<&ModelId> {
        self.passes.get(&owner).map(|(job, _)| &job.model_id)
    }

    /// Returns those who have a pass under way.
    pub(super) fn owners_of_passes(&self) -> Vec<Owner> {
        self.passes.keys().copied().collect()
    }

    /// Returns whether an operation may begin now. If not, a pass under way has to end first.
    pub(super) fn can_begin(&self, job: &TrainJob) -> bool {
        let (operation, passes) = (&job.operation, self.passes.len());
        passes == 0
            || (passes < PASSES || !matches!(operation, Operation::Pass(_)))
                && self.runs.has_room(&job.model_id, operation)
    }

    /// Begins an operation. It is then at its end, unless it is a pass of more than one slice. Returns an
    /// adapter that it saved for sampling.
    pub(super) fn begin(&mut self, job: TrainJob, waits: Waits) -> Option<NewAdapter> {
        let TrainJob {
            request,
            model_id,
            owner,
            session,
            seq_id,
            operation,
            responder,
            place,
            memory: _memory,
            clock: _,
            mut pending,
        } = job;
        pending.begin();
        let job = Job {
            request,
            model_id,
            owner,
            session,
            seq_id,
            name: operation.name(),
            tokens: operation.tokens(),
            changes_run: operation.changes_run(),
            is_repeatable: operation.is_repeatable(),
            responder,
            place,
            begun: Timestamp::now(),
            spent: Duration::ZERO,
            waits,
            pending,
        };
        self.turn(job, |training, job| training.execute(job, operation))
    }

    /// Computes the next slice of an owner's pass.
    pub(super) fn advance(&mut self, owner: Owner) -> Option<NewAdapter> {
        let (job, pass) = self.passes.remove(&owner)?;
        // Only a pass with gradients changes its run.
        self.turn(job, |_, job| Self::advance_pass(pass, job.changes_run))
    }

    fn turn(
        &mut self,
        mut job: Job,
        compute: impl FnOnce(&mut Self, &Job) -> Result<Turn, OperationError>,
    ) -> Option<NewAdapter> {
        let start = Instant::now();
        lock(&self.mark).operation(&job.request);
        let result = catch_unwind(AssertUnwindSafe(|| compute(self, &job)));
        let done = match result {
            Ok(Ok(Turn::Continue(pass))) => {
                job.spent += start.elapsed();
                self.passes.insert(job.owner, (job, pass));
                return None;
            }
            Ok(Ok(Turn::Done(done))) => self.make_durable(&job, *done),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                // What the panic left behind may be half an update.
                let id = &job.model_id;
                tracing::error!(model.id = %id, "an operation panicked; its model is lost");
                self.runs.remove(id);
                self.runs.close(id, "an internal error ended it", true);
                Err(OperationError::Panicked(id.clone()))
            }
        };
        job.spent += start.elapsed();
        self.end(job, done)
    }

    /// Writes a snapshot of a run that was changed, if the operation could not be repeated otherwise.
    fn make_durable(&mut self, job: &Job, mut done: Done) -> Result<Done, OperationError> {
        if job.changes_run && !done.with_snapshot {
            done.with_snapshot = self.runs.make_durable(&job.model_id, job.seq_id)?;
        }
        Ok(done)
    }

    /// Stores and shows the result of an operation.
    fn end(&mut self, job: Job, done: Result<Done, OperationError>) -> Option<NewAdapter> {
        let succeeded = done.is_ok();
        if let Err(failure) = &done
            && job.is_repeat()
            && failure.leaves_run_behind()
        {
            // It succeeded before: without it, the run is not what its client has seen.
            self.runs.set_aside(&job.model_id, &failure.to_string());
        }
        let done = done.unwrap_or_else(|failure| failure.into_outcome().into());
        let metrics = &self.shared.metrics;
        let result = if succeeded { "done" } else { "failed" };
        metrics.operation(job.name, result);
        metrics.operation_time(job.name, job.spent);
        metrics.tokens("trained", job.tokens);

        let mut ending = Ending::from(done.outcome);
        ending.waits = job.waits;
        ending.busy = Some(job.spent);
        ending.measured = done.measured.map(|mut measured| {
            measured.add_times(job.spent, job.waits.queue_ms());
            measured
        });
        ending.of_run = Some((job.model_id.clone(), job.seq_id));
        ending.with_snapshot = done.with_snapshot;
        ending.begun = Some((job.session.clone(), job.begun));
        if succeeded && job.tokens > 0 {
            ending.usage.push(Usage {
                owner: job.owner,
                base_model: self.base_model.clone(),
                session: Some(job.session),
                kind: UsageKind::Training,
                tokens: job.tokens,
            });
        }
        ending.is_repeatable = succeeded && job.is_repeatable && self.runs.repeats_exactly();
        if done.closes_run {
            // Before the result is seen: a client that has it must not find the model open.
            ending
                .also
                .extend(self.runs.closed(&job.model_id, "it was unloaded", false));
        }
        self.shared.under_way.ended(&job.request);
        // The queue has room as soon as its client can know.
        drop(job.place);
        if let Some(mut responder) = job.responder {
            responder.shows_end_of(job.pending);
            match (done.sampler, done.saved) {
                (Some(sampler), _) => self.finish_sampler(responder, ending, sampler),
                (None, Some(saved)) => self.finish_checkpoint(responder, ending, saved),
                (None, None) => responder.finish(ending),
            }
        }
        if succeeded && job.changes_run {
            self.runs.changed(&job.model_id, job.seq_id, job.spent);
        }
        done.adapter
    }

    /// Registers a sampling session before its id is seen, and not at all if it cannot be stored.
    fn finish_sampler(&self, responder: Responder, mut ending: Ending, sampler: SamplerRecord) {
        let (id, folder) = (sampler.id.clone(), sampler.own_folder().cloned());
        ending.also.push(Change::Sampler(sampler.clone()));
        let mut registry = self.shared.registry();
        registry.samplers.insert(id.clone(), Sampler::new(sampler));
        drop(registry);
        if let Err(unstored) = responder.try_finish(ending) {
            self.shared.registry().samplers.remove(&id);
            if let Some(folder) = folder {
                files::remove(&self.shared.checkpoints.folder(&folder));
            }
            unstored.fail();
        }
    }

    /// Lists a checkpoint before its path is seen, and not at all if that cannot be stored.
    fn finish_checkpoint(&self, responder: Responder, mut ending: Ending, saved: SavedCheckpoint) {
        let checkpoints = &self.shared.checkpoints;
        let (path, folder, owner) = (saved.path().clone(), saved.folder.clone(), saved.owner);
        let (before, change) = checkpoints.replace(saved);
        ending.also.push(change);
        let Err(unstored) = responder.try_finish(ending) else {
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
    /// folders of adapters that nothing else uses, and what has to be stored once nobody needs them.
    pub(super) fn forget(&mut self, session: &SessionId) -> (Vec<PathBuf>, Vec<Change>) {
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
            self.runs.close(&id, "its session is finished", false);
        }
        let (mut folders, mut gone) = (Vec::new(), Vec::new());
        for sampler in samplers {
            let folder = sampler.own_folder();
            folders.extend(folder.map(|folder| self.shared.checkpoints.folder(folder)));
            self.shared.results.feeds.forget(&sampler.id);
            gone.push(Change::SamplerGone(sampler.id));
        }
        (folders, gone)
    }

    /// Stores changes that nobody waits for.
    pub(super) fn note_all(&self, changes: Vec<Change>) {
        for change in changes {
            self.shared.store.note(change);
        }
    }
}
