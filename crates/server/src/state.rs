//! The handle that every request works with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;

use tinkrs_backend::{Backend, Description, Need};
use tinkrs_chat::{Renderer, TokenBytes, Tokenizer};
use tinkrs_types::training::LoraConfig;

use crate::api::tokenizers::SentTokenizer;
use crate::auth::{Auth, Owner};
use crate::checkpoints::Checkpoints;
use crate::error::ApiError;
use crate::faults::Faults;
use crate::grammar::Grammars;
use crate::lock::lock;
use crate::memory::{Budget, Plan};
use crate::places::{Places, QueuePlace};
use crate::registry::Registry;
use crate::results::Results;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::store::{OpenError, Store};
use crate::under_way::UnderWay;
use crate::worker::{self, Command, SLICE_TOKENS};

/// A model that clients can train and sample.
#[derive(Clone, Debug)]
pub struct BaseModel {
    /// The name that clients use.
    pub name: String,
    /// What computes with its weights.
    pub backend: Arc<dyn Backend>,
    /// A folder or name that clients can load the tokenizer from.
    pub tokenizer_id: Option<String>,
    /// The tokenizer. Without it, samples cannot stop at a text.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// How its conversations are written. Without it, endpoints take no messages for it.
    pub renderer: Option<Renderer>,
}

impl BaseModel {
    /// Names a model. It has no tokenizer, and none that clients could load.
    pub fn new(name: impl Into<String>, backend: impl Backend + 'static) -> Self {
        Self {
            name: name.into(),
            backend: Arc::new(backend),
            tokenizer_id: None,
            tokenizer: None,
            renderer: None,
        }
    }

    /// Bounds the bytes that training takes here, this model included: a run with an adapter, and a pass over `tokens`
    /// tokens whose longest datum has `longest`.
    pub fn training_bytes(&self, lora: &LoraConfig, tokens: usize, longest: usize) -> u64 {
        let slice = Need::Slice {
            lora: lora.clone(),
            tokens: tokens.min(SLICE_TOKENS),
            longest: longest.min(self.backend.describe().context),
            backward: true,
        };
        let run = Need::Run { lora: lora.clone() };
        let copies = Need::Copies { lora: lora.clone() };
        let pass = Need::Pass { lora: lora.clone() };
        let needs = [Need::Weights, run, copies, pass, slice];
        needs.iter().map(|need| self.backend.memory(need)).sum()
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

    /// The base models do not fit the memory that the server may use.
    #[error("not enough memory")]
    Memory(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// Another process uses the data folder.
    #[error("could not use the data folder {}: another process uses it", .0.display())]
    Used(PathBuf),

    /// The data folder cannot be used.
    #[error("could not use the data folder {}", folder.display())]
    Data {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The keys or the faults cannot be used.
    #[error(transparent)]
    Settings(Box<dyn std::error::Error + Send + Sync>),

    /// There is no port to listen on.
    #[error("could not listen on 127.0.0.1")]
    Listen(#[source] std::io::Error),

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

/// The threads of a server, and the state that they share with its handlers.
#[derive(Debug)]
pub(crate) struct Inner {
    shared: Arc<Shared>,
    bases: BTreeMap<String, Arc<Base>>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// A base model with its queues and the way to its thread.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) name: String,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) description: Description,
    pub(crate) tokenizer_id: Option<String>,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    pub(crate) renderer: Option<Renderer>,
    /// What clients are given to load the tokenizer from.
    pub(crate) tokenizer_files: SentTokenizer,
    token_bytes: OnceLock<TokenBytes>,
    longest_token: OnceLock<Option<usize>>,
    grammars: OnceLock<Result<Grammars, String>>,
    operations: Arc<Places>,
    samples: Arc<Places>,
    commands: Sender<Command>,
}

impl Base {
    /// Starts the thread of a base model, which is the server's `number`-th.
    fn open(
        number: usize,
        model: BaseModel,
        shared: &Arc<Shared>,
    ) -> Result<(Self, JoinHandle<()>), StartError> {
        let BaseModel {
            name,
            backend,
            tokenizer_id,
            tokenizer,
            renderer,
        } = model;
        let (commands, thread) = worker::spawn(
            (number, &name),
            Arc::clone(&backend),
            tokenizer.clone(),
            Arc::clone(shared),
        )
        .map_err(StartError::Thread)?;
        let base = Self {
            name,
            description: backend.describe(),
            backend,
            tokenizer_id,
            tokenizer,
            renderer,
            tokenizer_files: SentTokenizer::default(),
            token_bytes: OnceLock::new(),
            longest_token: OnceLock::new(),
            grammars: OnceLock::new(),
            operations: Places::new(shared.settings.queued_operations),
            samples: Places::new(shared.settings.queued_samples),
            commands,
        };
        Ok((base, thread))
    }

    /// Takes a place in the queue of training operations.
    pub(crate) fn operation_place(&self, owner: Owner) -> Result<QueuePlace, ApiError> {
        let place = self.operations.take(owner, 1);
        place.ok_or_else(|| ApiError::busy("too many training operations of this key are waiting"))
    }

    /// Takes a place in the queue of samples.
    pub(crate) fn sample_place(&self, owner: Owner) -> Result<QueuePlace, ApiError> {
        let place = self.samples.take(owner, 1);
        place.ok_or_else(|| ApiError::busy("too many samples of this key are waiting"))
    }

    /// Returns the bytes of a token; none without a tokenizer.
    pub(crate) fn token_bytes(&self, token: u32) -> &[u8] {
        self.all_token_bytes().map_or(&[], |all| all.get(token))
    }

    fn all_token_bytes(&self) -> Option<&TokenBytes> {
        let tokenizer = self.tokenizer.as_ref()?;
        let read = || tokenizer.token_bytes(self.description.vocabulary);
        Some(self.token_bytes.get_or_init(read))
    }

    /// Returns how many bytes of text its context has room for at most; `None` without a tokenizer.
    pub(crate) fn context_bytes(&self) -> Option<usize> {
        let longest = self.longest_token.get_or_init(|| {
            let all = self.all_token_bytes()?;
            let tokens = 0..u32::try_from(self.description.vocabulary).unwrap_or(u32::MAX);
            tokens.map(|token| all.get(token).len()).max()
        });
        Some(self.description.context.saturating_mul((*longest)?))
    }

    /// Returns what compiles grammars for its vocabulary, which is prepared for the first request that needs it.
    pub(crate) fn grammars(&self) -> Result<&Grammars, &str> {
        let prepared = self.grammars.get_or_init(|| match self.all_token_bytes() {
            Some(bytes) => Grammars::new(bytes, self.description.vocabulary),
            None => Err("the model has no tokenizer".to_owned()),
        });
        prepared.as_ref().map_err(String::as_str)
    }

    /// Hands something to the thread. If that is gone, so is the server.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

impl Server {
    /// Opens the data folder, starts a thread for each model, and takes up the work that an earlier
    /// server left there.
    ///
    /// # Errors
    ///
    /// When there is no model or two of the same name, when they do not fit the memory, when the data folder cannot be used or
    /// another server uses it, or when the system refuses a thread.
    pub fn start(models: Vec<BaseModel>, settings: Settings) -> Result<Self, StartError> {
        if models.is_empty() {
            return Err(StartError::NoModel);
        }
        Self::start_with(models, settings)
    }

    /// Opens the data folder for what needs no model: to list, describe, download and delete. Work that an
    /// earlier server left there stays as it is.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_without_models(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(Vec::new(), settings)
    }

    fn start_with(models: Vec<BaseModel>, settings: Settings) -> Result<Self, StartError> {
        settings
            .check()
            .map_err(|error| StartError::Settings(Box::new(error)))?;
        let weights = models.iter();
        let weights = weights
            .map(|base| base.backend.memory(&Need::Weights))
            .sum();
        let plan = Plan::new(settings.memory_limit(), weights, models.len())
            .map_err(|error| StartError::Memory(Box::new(error)))?;
        let (store, mut loaded) = Store::open(&settings.data).map_err(|source| match source {
            OpenError::Used => StartError::Used(settings.data.clone()),
            OpenError::Io(source) => data_error(&settings, source),
            source => data_error(&settings, source),
        })?;
        let under_way =
            UnderWay::open(&settings.data).map_err(|source| data_error(&settings, source))?;
        let auth = Auth::open(
            &settings.data,
            settings.key_file.as_deref(),
            settings.admin_key_file.as_deref(),
        )
        .map_err(|error| StartError::Settings(Box::new(error)))?;
        let faults = match &settings.faults {
            Some(path) => Faults::load(path).map_err(|error| StartError::Settings(error.into()))?,
            None => Faults::default(),
        };
        let store = Arc::new(store);
        let results = Results::new(Arc::clone(&store), loaded.epoch, plan.results);
        let saved = std::mem::take(&mut loaded.checkpoints);
        let checkpoints = Checkpoints::new(Arc::clone(&store), saved);
        let registry = Registry::new(Arc::clone(&store));
        let shared = Shared::new(
            settings,
            Budget::new(plan),
            under_way,
            auth,
            faults,
            store,
            results,
            checkpoints,
            registry,
        );
        let shared = Arc::new(shared);
        let mut bases = BTreeMap::new();
        let mut workers = Vec::new();
        for (number, base) in models.into_iter().enumerate() {
            let name = base.name.clone();
            let (base, worker) = Base::open(number, base, &shared)?;
            workers.push(worker);
            if bases.insert(name.clone(), Arc::new(base)).is_some() {
                return Err(StartError::SameName(name));
            }
        }
        let server = Self {
            inner: Arc::new(Inner {
                shared,
                bases,
                workers: Mutex::new(workers),
            }),
        };
        server.recover(loaded);
        Ok(server)
    }

    /// Answers all waiting polls, so that a server can stop.
    pub(crate) fn close(&self) {
        // Requests that hang on purpose would hold the server up.
        self.faults().clear();
        self.shared().closing.send_replace(true);
    }

    /// Completes when the server is about to stop.
    pub(crate) async fn closing(&self) {
        let mut closing = self.shared().closing.subscribe();
        // The sender lives as long as `self`.
        let _ = closing.wait_for(|closing| *closing).await;
    }

    /// Lets every thread finish the operation that it is at, stores what there is to store, and
    /// releases the data folder. What has not begun waits there for the next server.
    pub(crate) fn stop(&self) {
        for base in self.inner.bases.values() {
            base.send(Command::Stop);
        }
        for worker in lock(&self.inner.workers).drain(..) {
            let _ = worker.join();
        }
        self.inner.shared.store.close();
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.inner.shared.registry()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// Returns the state for those who must not keep the server alive.
    #[cfg(feature = "otel")]
    pub(crate) fn weak_shared(&self) -> std::sync::Weak<Shared> {
        std::sync::Arc::downgrade(&self.inner.shared)
    }

    pub(crate) fn auth(&self) -> &Auth {
        &self.shared().auth
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.shared().faults
    }

    /// Whether only the keys of a file are taken. A server that takes any key belongs on a loopback
    /// address.
    pub fn is_restricted(&self) -> bool {
        self.auth().is_restricted()
    }

    pub(crate) fn bases(&self) -> &BTreeMap<String, Arc<Base>> {
        &self.inner.bases
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// Finds a base model by its name.
    pub(crate) fn base(&self, name: &str) -> Result<&Arc<Base>, ApiError> {
        self.inner.bases.get(name).ok_or_else(|| {
            let names: Vec<_> = self.inner.bases.keys().map(String::as_str).collect();
            let expected = match names.as_slice() {
                [] => "none: this server was started without models".to_owned(),
                names => format!("one of: {}", names.join(", ")),
            };
            ApiError::bad_request(format!("`base_model`: found `{name}`, expected {expected}"))
        })
    }
}

fn data_error(
    settings: &Settings,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StartError {
    StartError::Data {
        folder: settings.data.clone(),
        source: source.into(),
    }
}

impl From<Arc<Inner>> for Server {
    fn from(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}
