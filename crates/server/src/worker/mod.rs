//! The thread that owns a base model: its training runs and its sampler.
//!
//! A [`Backend`] computes without yielding, so it runs on a thread of its own and is handed work through
//! a channel. The channel has no bound, because everything sent through it holds a permit of a bounded
//! queue (see [`state`](crate::state)). The backend sees plain data; results to be delivered, permits and
//! watchers stay here, under the ticket of a sample or with the operation under way.
//!
//! Training and sampling share the machine by time: after a slice of a pass, or another operation of
//! training, samples advance for as long as that took, then it is training's turn again. Training
//! operations run one after the other, in the order in which they arrive here, which for one model is the
//! order of their sequence ids.

mod adapters;
mod execute;
mod operation;
mod operation_error;
mod sampling;
mod snapshots;
mod training;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tinkrs_backend::{Backend, SampleRequest};
use tinkrs_chat::Tokenizer;
use tinkrs_types::service::ErrorCategory;
use tinkrs_types::{ModelId, RequestId, SessionId};
use tokio::sync::OwnedSemaphorePermit;

use crate::auth::Owner;
use crate::error::chain;
use crate::results::{OperationResult, Responder};
use crate::shared::Shared;
use crate::watch::TokenSender;
pub(crate) use execute::STATE_FILE;
pub(crate) use operation::Operation;

/// Something for the worker to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// An operation of a training run.
    Train(TrainJob),
    /// A run goes on from a snapshot, or from nothing if that cannot be read.
    Restore { model_id: ModelId, seq_id: i64 },
    /// A request for samples.
    Sample(SampleJob),
    /// The client has cancelled this request.
    Cancel { owner: Owner, id: RequestId },
    /// A session is finished: what it held will not be used again.
    Forget(SessionId),
    /// The server stops: what has not begun waits for the next start.
    Stop,
}

/// An operation of a training run, with its place in the queue.
#[derive(Debug)]
pub(crate) struct TrainJob {
    pub(crate) model_id: ModelId,
    pub(crate) owner: Owner,
    pub(crate) session: SessionId,
    pub(crate) seq_id: i64,
    pub(crate) operation: Operation,
    /// `None` if the result was stored before: the operation is repeated for what it does to the
    /// run.
    pub(crate) responder: Option<Responder>,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// A request for samples, with its place in the queue.
#[derive(Debug)]
pub(crate) struct SampleJob {
    pub(crate) owner: Owner,
    pub(crate) session: Option<SessionId>,
    /// The adapter to sample with; `None` for the base model.
    pub(crate) adapter: Option<PathBuf>,
    /// What to sample. Its `adapter` is filled in by the worker.
    pub(crate) request: SampleRequest,
    pub(crate) responder: Responder,
    /// `None` for a request that was accepted before this process began.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// Where the tokens go as they are drawn, for those who watch the request.
    pub(crate) tokens: TokenSender,
}

/// Starts the thread of a model. It ends when the sender is dropped.
pub(crate) fn spawn(
    name: &str,
    backend: Arc<dyn Backend>,
    tokenizer: Option<Arc<Tokenizer>>,
    shared: Arc<Shared>,
) -> std::io::Result<(Sender<Command>, JoinHandle<()>)> {
    let (sender, commands) = channel();
    let mut worker = Worker {
        sampling: sampling::Sampling::new(name, Arc::clone(&backend), tokenizer, &shared),
        training: training::Training::new(name, backend, shared)?,
        queue: VecDeque::new(),
    };
    let thread = std::thread::Builder::new()
        .name("tinkrs-worker".to_owned())
        .spawn(move || worker.run(&commands))?;
    Ok((sender, thread))
}

struct Worker {
    training: training::Training,
    sampling: sampling::Sampling,
    /// Done in the order of arrival: training, and forgetting what was trained.
    queue: VecDeque<Command>,
}

impl Worker {
    fn run(&mut self, commands: &Receiver<Command>) {
        self.run_until_stopped(commands);
        // What has begun is brought to its end.
        while self.training.has_pass() {
            self.train();
        }
    }

    fn run_until_stopped(&mut self, commands: &Receiver<Command>) {
        loop {
            if self.is_idle() {
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
            let training_time = self.train();
            let start = Instant::now();
            while !self.sampling.is_idle() {
                self.sampling.step();
                if !self.take_all(commands) {
                    return;
                }
                if start.elapsed() >= training_time {
                    break;
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.training.has_pass() && self.sampling.is_idle()
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
            Command::Sample(job) => self.sampling.submit(job),
            Command::Cancel { owner, id } => self.sampling.cancel(owner, &id),
            Command::Train(_) | Command::Restore { .. } | Command::Forget(_) => {
                self.queue.push_back(command);
            }
            Command::Stop => return false,
        }
        true
    }

    /// Does the next slice of the pass under way, or else one thing of the queue. Returns how long it
    /// took.
    fn train(&mut self) -> Duration {
        let start = Instant::now();
        let new_adapter = if self.training.has_pass() {
            self.training.advance()
        } else {
            match self.queue.pop_front() {
                Some(Command::Train(job)) => self.training.begin(job),
                Some(Command::Restore { model_id, seq_id }) => {
                    self.training.restore(model_id, seq_id);
                    None
                }
                Some(Command::Forget(session)) => {
                    let adapters = self.training.forget(&session);
                    self.sampling.forget(&adapters);
                    None
                }
                _ => None,
            }
        };
        // A new adapter is handed to the sampler as it is in memory, sparing it the disk.
        if let Some((folder, adapter)) = new_adapter {
            self.sampling.adopt(folder, &adapter);
        }
        start.elapsed()
    }
}

/// Turns an error of the backend into the result of an operation.
fn failure(error: &tinkrs_backend::Error) -> OperationResult {
    // Training diverges because of its data and settings, which are the client's.
    let category = if error.is_bad_request() || error.is_divergence() {
        ErrorCategory::User
    } else {
        ErrorCategory::Server
    };
    OperationResult::failed(chain(error), category)
}
