//! The handle that every request works with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tinkrs_engine::Model;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::checkpoints::Checkpoints;
use crate::error::Refusal;
use crate::futures::{Futures, lock};
use crate::registry::Registry;
use crate::worker::{self, Command};

/// A model that clients can train and sample.
#[derive(Clone, Debug)]
pub struct BaseModel {
    /// The name that clients use.
    pub name: String,
    /// The weights.
    pub model: Arc<Model>,
    /// A folder or name that a client's tokenizer can be loaded from.
    pub tokenizer: Option<String>,
}

impl BaseModel {
    /// Names a model. It has no tokenizer that clients could load.
    pub fn new(name: impl Into<String>, model: Arc<Model>) -> Self {
        Self {
            name: name.into(),
            model,
            tokenizer: None,
        }
    }
}

/// How a server works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Where checkpoints are written.
    pub data: PathBuf,
    /// How many training operations of a base model may wait. Default 1024.
    pub queued_operations: usize,
    /// How many requests for samples of a base model may wait. Default 4096.
    pub queued_samples: usize,
    /// How long operations wait for one with a lower number. Default one minute.
    pub gap_patience: Duration,
    /// How long a poll waits for a result. Default 30 seconds; clients hang up after 45.
    pub poll_patience: Duration,
}

impl Settings {
    /// Makes the default settings with this data folder.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self {
            data: data.as_ref().to_owned(),
            queued_operations: 1024,
            queued_samples: 4096,
            gap_patience: Duration::from_secs(60),
            poll_patience: Duration::from_secs(30),
        }
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is nothing to serve.
    #[error("no model: a server needs at least one")]
    NoModel,

    /// Two models have the same name.
    #[error("two models are called `{0}`")]
    SameName(String),

    /// The data folder cannot be used.
    #[error("could not use the data folder {}", folder.display())]
    Data {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },

    /// The system refused a thread.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
}

/// A running server: a handle that is cheap to clone.
///
/// The threads that compute end when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) bases: BTreeMap<String, Arc<Base>>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) futures: Futures,
    registry: Mutex<Registry>,
    closing: watch::Sender<bool>,
}

/// A base model with its queues and the way to its thread.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) name: String,
    pub(crate) model: Arc<Model>,
    pub(crate) tokenizer: Option<String>,
    operations: Arc<Semaphore>,
    samples: Arc<Semaphore>,
    commands: Sender<Command>,
}

impl Base {
    /// Takes a place in the queue of training operations.
    pub(crate) fn operation_permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.operations)
            .try_acquire_owned()
            .map_err(|_| Refusal::busy("too many training operations are waiting"))
    }

    /// Takes a place in the queue of samples.
    pub(crate) fn sample_permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.samples)
            .try_acquire_owned()
            .map_err(|_| Refusal::busy("too many samples are waiting"))
    }

    /// Hands something to the thread. If that is gone, what is sent fails by being dropped.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

impl Server {
    /// Starts a thread for each model.
    ///
    /// # Errors
    ///
    /// When there is no model or two of the same name, or the system refuses a folder or a thread.
    pub fn start(models: Vec<BaseModel>, settings: Settings) -> Result<Self, StartError> {
        if models.is_empty() {
            return Err(StartError::NoModel);
        }
        let checkpoints = Checkpoints::open(&settings.data).map_err(|source| StartError::Data {
            folder: settings.data.clone(),
            source,
        })?;
        let checkpoints = Arc::new(checkpoints);
        let mut bases = BTreeMap::new();
        for base in models {
            let BaseModel {
                name,
                model,
                tokenizer,
            } = base;
            let (queued, threads) = (settings.queued_samples, Arc::clone(&checkpoints));
            let commands = worker::spawn(&name, Arc::clone(&model), threads, queued)
                .map_err(StartError::Thread)?;
            let base = Arc::new(Base {
                name: name.clone(),
                model,
                tokenizer,
                operations: Arc::new(Semaphore::new(settings.queued_operations)),
                samples: Arc::new(Semaphore::new(settings.queued_samples)),
                commands,
            });
            if bases.insert(name.clone(), base).is_some() {
                return Err(StartError::SameName(name));
            }
        }
        Ok(Self {
            inner: Arc::new(Inner {
                settings,
                bases,
                checkpoints,
                futures: Futures::new(),
                registry: Mutex::default(),
                closing: watch::Sender::new(false),
            }),
        })
    }

    /// Answers all waiting polls, so that a server can stop.
    pub(crate) fn close(&self) {
        self.inner.closing.send_replace(true);
    }

    /// Completes when the server is about to stop.
    pub(crate) async fn closing(&self) {
        let mut closing = self.inner.closing.subscribe();
        // The sender lives as long as `self`.
        let _ = closing.wait_for(|closing| *closing).await;
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.inner.registry)
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// Finds a base model by its name.
    pub(crate) fn base(&self, name: &str) -> Result<&Arc<Base>, Refusal> {
        self.inner.bases.get(name).ok_or_else(|| {
            let names: Vec<_> = self.inner.bases.keys().map(String::as_str).collect();
            Refusal::bad_request(format!(
                "`base_model`: found `{name}`, expected one of: {}",
                names.join(", ")
            ))
        })
    }
}

impl From<Arc<Inner>> for Server {
    fn from(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}
