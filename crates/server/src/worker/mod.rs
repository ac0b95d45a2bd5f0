//! The thread that owns a base model: its training runs and its sampler.
//!
//! A [`Backend`] computes without yielding, so it runs on a thread of its own and is handed work through
//! a channel. The channel has no bound, because everything sent through it holds a place in a bounded
//! queue ([`places`](crate::places)). The backend sees plain data; results to be delivered, places and
//! watchers stay here, under the ticket of a sample or with the operation under way.
//!
//! Everyone has their turn ([`turns`]): training and sampling share the machine by time, and so do the owners
//! who train. A turn of training is a slice of a pass, or another operation. Each owner has a line in
//! which operations are done one after the other, in the order in which they arrive here, which for one model
//! is the order of their sequence ids; so an owner has one pass under way, however many runs it has. How owners
//! share the sampler is in [`sampling`].

mod adapters;
mod execute;
mod feed;
mod operation;
mod operation_error;
mod runs;
mod sampling;
mod snapshots;
mod training;
mod turns;
mod waiting_pass;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tinkrs_backend::Backend;
use tinkrs_chat::Tokenizer;
use tinkrs_types::service::ErrorCategory;
use tinkrs_types::{ModelId, RequestId, SessionId};

use crate::auth::Owner;
use crate::error::chain;
use crate::lock::lock;
use crate::operations::sample::WaitingSample;
use crate::places::QueuePlace;
use crate::results::{OperationResult, Responder, SampleReply};
use crate::shared::Shared;
use crate::studio::activity::Pending;
use crate::studio::waits::WaitClock;
use crate::token_watch::TokenSender;
use crate::under_way::Mark;
pub(crate) use execute::{SLICE_TOKENS, STATE_FILE};
pub(crate) use operation::Operation;
use turns::{Turns, Wish};
pub(crate) use waiting_pass::{DecodePass, PassSize, WaitingPass};

/// Something for the worker to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// An operation of a training run.
    Train(TrainJob),
    /// There is a run in a snapshot.
    Restore {
        model_id: ModelId,
        owner: Owner,
        seq_id: i64,
    },
    /// A request for samples.
    Sample(SampleJob),
    /// The client has cancelled this request.
    Cancel { owner: Owner, id: RequestId },
    /// A session is finished: what it held will not be used again.
    Forget { session: SessionId, owner: Owner },
    /// Adapters will not be sampled from again.
    ForgetAdapters(Vec<PathBuf>),
    /// Time has passed: what is idle may leave the memory.
    FreeIdle,
    /// The server stops: what has not begun waits for the next start.
    Stop,
}

/// An operation of a training run, with its place in the queue.
#[derive(Debug)]
pub(crate) struct TrainJob {
    pub(crate) request: RequestId,
    pub(crate) model_id: ModelId,
    pub(crate) owner: Owner,
    pub(crate) session: SessionId,
    pub(crate) seq_id: i64,
    pub(crate) operation: Operation,
    /// `None` if the result was stored before: the operation is repeated for what it does to the
    /// run.
    pub(crate) responder: Option<Responder>,
    pub(crate) place: Option<QueuePlace>,
    /// For the bytes of a request that is not small and not a pass, which has its own.
    pub(crate) memory: Option<QueuePlace>,
    /// Why it waits.
    pub(crate) clock: WaitClock,
    /// Says that its run has something to do.
    pub(crate) pending: Pending,
}

/// A request for samples, with its place in the queue.
#[derive(Debug)]
pub(crate) struct SampleJob {
    pub(crate) owner: Owner,
    pub(crate) session: Option<SessionId>,
    /// The adapter to sample with; `None` for the base model.
    pub(crate) adapter: Option<PathBuf>,
    pub(crate) request: WaitingSample,
    pub(crate) reply: SampleReply,
    /// `None` for a request that was accepted before this process began.
    pub(crate) place: Option<QueuePlace>,
    /// Where the tokens go as they are drawn, for those who watch the request.
    pub(crate) tokens: TokenSender,
    /// Whether the server may have died of it, so that it is drawn alone.
    pub(crate) is_suspect: bool,
}

/// Starts the thread of a model. It ends when the sender is dropped.
pub(crate) fn spawn(
    (number, name): (usize, &str),
    backend: Arc<dyn Backend>,
    tokenizer: Option<Arc<Tokenizer>>,
    shared: Arc<Shared>,
) -> std::io::Result<(Sender<Command>, JoinHandle<()>)> {
    let (sender, commands) = channel();
    let mark = Arc::new(Mutex::new(shared.under_way.mark(number)?));
    let sampling = sampling::Sampling::new(
        name,
        Arc::clone(&backend),
        tokenizer,
        &shared,
        Arc::clone(&mark),
    );
    let mut worker = Worker {
        sampling,
        training: training::Training::new(name, backend, shared, Arc::clone(&mark))?,
        mark,
        lines: HashMap::new(),
        owners: Turns::new([]),
        kinds: Turns::new([Work::Training, Work::Sampling]),
        last_turn: None,
    };
    let thread = std::thread::Builder::new()
        .name("tinkrs-worker".to_owned())
        .spawn(move || worker.run(&commands))?;
    Ok((sender, thread))
}

/// What a worker does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Training,
    Sampling,
}

/// What an owner has to be done, and how long it took so far.
#[derive(Default)]
struct Line {
    commands: VecDeque<Command>,
    /// How long each of its runs has been computed since the line was last empty.
    spent: HashMap<ModelId, Duration>,
    /// Since when the first has no memory to begin.
    blocked: Option<Instant>,
}

impl Line {
    fn spent(&self, run: &ModelId) -> Duration {
        self.spent.get(run).copied().unwrap_or_default()
    }
}

/// What was trained last, and when.
struct TrainingTurn {
    run: ModelId,
    start: Instant,
    end: Instant,
}

struct Worker {
    mark: Arc<Mutex<Mark>>,
    training: training::Training,
    sampling: sampling::Sampling,
    /// For each owner in `owners`, what is done in the order of arrival: training, and forgetting what was
    /// trained.
    lines: HashMap<Owner, Line>,
    /// Those who have something in their line or a pass under way.
    owners: Turns<Owner>,
    kinds: Turns<Work>,
    last_turn: Option<TrainingTurn>,
}

impl Worker {
    fn run(&mut self, commands: &Receiver<Command>) {
        self.run_until_stopped(commands);
        // What has begun is brought to its end.
        for owner in self.training.owners_of_passes() {
            while self.training.has_pass(owner) {
                self.train(owner);
            }
        }
    }

    fn run_until_stopped(&mut self, commands: &Receiver<Command>) {
        loop {
            let idle = self.owners.is_empty() && self.sampling.is_idle();
            if idle {
                lock(&self.mark).nothing();
                let Ok(command) = commands.recv() else {
                    return;
                };
                if !self.take(command) {
                    return;
                }
            }
            if !self.take_all(commands) {
                return;
            }
            self.turn();
        }
    }

    /// Takes what has arrived. Returns whether to continue.
    fn take_all(&mut self, commands: &Receiver<Command>) -> bool {
        loop {
            match commands.try_recv() {
                Ok(command) => {
                    if !self.take(command) {
                        return false;
                    }
                }
                Err(error) => return error == std::sync::mpsc::TryRecvError::Empty,
            }
        }
    }

    fn take(&mut self, command: Command) -> bool {
        match command {
            Command::Sample(job) => self.sampling.take(job),
            Command::Cancel { owner, id } => self.sampling.cancel(owner, &id),
            Command::ForgetAdapters(folders) => self.sampling.forget(&folders),
            Command::FreeIdle => {
                let is_busy = !(self.owners.is_empty() && self.sampling.is_idle());
                self.training.runs.free_idle(is_busy);
            }
            Command::Train(mut job) => {
                let last = self.last_turn.as_ref();
                let last = last.filter(|last| last.run == job.model_id);
                let last = last.map(|last| (last.start, last.end));
                let line = self.line(job.owner);
                job.clock.arrive(line.spent(&job.model_id), last);
                line.commands.push_back(Command::Train(job));
            }
            Command::Restore { owner, .. } | Command::Forget { owner, .. } => {
                self.line(owner).commands.push_back(command);
            }
            Command::Stop => return false,
        }
        true
    }

    fn line(&mut self, owner: Owner) -> &mut Line {
        self.lines.entry(owner).or_insert_with(|| {
            self.owners.join(owner);
            Line::default()
        })
    }

    /// Does some work for whoever is next.
    fn turn(&mut self) {
        let owner = self.next_owner();
        let is_wanted = |work| match work {
            Work::Training => owner.is_some(),
            Work::Sampling => !self.sampling.is_idle(),
        };
        let wish = |work| {
            if is_wanted(work) {
                Wish::Turn
            } else {
                Wish::Later
            }
        };
        let Some(work) = self.kinds.next(wish) else {
            return;
        };
        let start = Instant::now();
        match (work, owner) {
            (Work::Training, Some(owner)) => {
                let run = self.train(owner);
                let end = Instant::now();
                let spent = end - start;
                self.owners.charge(owner, spent);
                if let (Some(run), Some(line)) = (&run, self.lines.get_mut(&owner)) {
                    *line.spent.entry(run.clone()).or_default() += spent;
                }
                self.last_turn = run.map(|run| TrainingTurn { run, start, end });
            }
            _ => self.sampling.step(),
        }
        self.kinds.charge(work, start.elapsed());
    }

    /// Returns the owner whose training is next.
    fn next_owner(&mut self) -> Option<Owner> {
        let (training, lines) = (&self.training, &mut self.lines);
        self.owners.next(|owner| {
            if training.has_pass(owner) {
                return Wish::Turn;
            }
            let line = lines.get_mut(&owner);
            match line.and_then(|line| Some((line.commands.front()?, &mut line.blocked))) {
                Some((Command::Train(job), blocked)) if !training.can_begin(job) => {
                    blocked.get_or_insert_with(Instant::now);
                    Wish::Later
                }
                Some(_) => Wish::Turn,
                None => {
                    lines.remove(&owner);
                    Wish::Leave
                }
            }
        })
    }

    /// Does the next slice of an owner's pass, or else one thing of its line. Returns the run that it was for.
    fn train(&mut self, owner: Owner) -> Option<ModelId> {
        let mut run = self.training.run_of_pass(owner).cloned();
        let new_adapter = if run.is_some() {
            self.training.advance(owner)
        } else {
            let line = self.lines.get_mut(&owner);
            let next = line.and_then(|line| Some((line.commands.pop_front()?, line)));
            match next {
                Some((Command::Train(job), line)) => {
                    run = Some(job.model_id.clone());
                    let blocked = line.blocked.take().map(|since| since.elapsed());
                    let spent = line.spent(&job.model_id);
                    let waits = job.clock.begin(spent, blocked.unwrap_or_default());
                    self.training.begin(job, waits)
                }
                Some((
                    Command::Restore {
                        model_id, seq_id, ..
                    },
                    _,
                )) => {
                    self.training.runs.add_stored(model_id, seq_id);
                    None
                }
                Some((Command::Forget { session, .. }, _)) => {
                    let (adapters, gone) = self.training.forget(&session);
                    self.sampling.forget(&adapters);
                    // Their folders go with the commit, so only now that nothing loads them any more.
                    self.training.note_all(gone);
                    None
                }
                _ => None,
            }
        };
        // A new adapter is handed to the sampler as it is in memory, sparing it the disk.
        if let Some(adapter) = new_adapter {
            self.sampling.adopt(adapter);
        }
        run
    }
}

/// Turns an error of the backend into the result of an operation.
fn failure(error: &tinkrs_backend::Error) -> OperationResult {
    OperationResult::failed(chain(error), category(error))
}

/// Tells who can do something about an error of the backend.
fn category(error: &tinkrs_backend::Error) -> ErrorCategory {
    // Training diverges because of its data and settings, which are the client's.
    if error.is_bad_request() || error.is_divergence() {
        ErrorCategory::User
    } else {
        ErrorCategory::Server
    }
}
