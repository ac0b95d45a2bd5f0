//! The state of a server: everything but its threads.
//!
//! A [`Server`](crate::Server) is a handle on its worker threads and on [`Shared`]. The threads have
//! `Shared` as well, so it holds nothing that keeps them alive: the ways to them and their handles are
//! with the server (see [`state`](crate::state)), and they end when the last handle is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use tinkrs_types::LossId;
use tokio::sync::{Semaphore, watch};

use crate::auth::{Auth, Owner};
use crate::checkpoints::Checkpoints;
use crate::faults::Faults;
use crate::grammar::GrammarCompiler;
use crate::intake::Intake;
use crate::lock::lock;
use crate::memory::Budget;
use crate::metrics::Metrics;
use crate::places::Places;
use crate::registry::Registry;
use crate::results::Results;
use crate::settings::Settings;
use crate::store::Store;
use crate::studio::activity::Activity;
use crate::studio::demo::Demo;
use crate::studio::events::EventStreams;
use crate::studio::server_view::Findings;
use crate::token_watch::TokenStreams;
use crate::under_way::UnderWay;
use crate::uploaded_losses::UploadedLoss;
use crate::waiting::Room;

/// How many adapters are imported at the same time: each may take its archive's room on the disk.
const IMPORTS: usize = 2;

/// The state of a server that its handlers and its threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) auth: Auth,
    pub(crate) faults: Faults,
    /// Whether the server is about to stop.
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) store: Arc<Store>,
    pub(crate) results: Arc<Results>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) losses: Mutex<HashMap<LossId, UploadedLoss>>,
    pub(crate) metrics: Metrics,
    pub(crate) memory: Budget,
    pub(crate) intake: Intake,
    pub(crate) grammars: GrammarCompiler,
    /// The memory of requests that wait.
    pub(crate) waiting: Arc<Places>,
    /// The memory of losses.
    pub(crate) loss_room: Arc<Places>,
    pub(crate) under_way: UnderWay,
    /// How many more adapters may be imported at the same time.
    pub(crate) imports: Arc<Semaphore>,
    pub(crate) token_streams: TokenStreams,
    pub(crate) activity: Arc<Activity>,
    /// The pages that hear of changes.
    pub(crate) event_streams: EventStreams,
    /// Who reads the data of a step.
    pub(crate) step_turn: Semaphore,
    pub(crate) started: Instant,
    /// What a process that has read the data folder knows this server by.
    pub(crate) folder_token: OnceLock<String>,
    /// When such a process has last asked for it.
    pub(crate) folder_asked: Mutex<Option<Instant>>,
    pub(crate) demo: Demo,
    pub(crate) findings: Findings,
    registry: Mutex<Registry>,
}

fn room_of(bytes: u64) -> Arc<Places> {
    Places::of_bytes(usize::try_from(bytes).unwrap_or(usize::MAX))
}

impl Shared {
    #[expect(clippy::too_many_arguments, reason = "one for each part of the state")]
    pub(crate) fn new(
        settings: Settings,
        memory: Budget,
        under_way: UnderWay,
        auth: Auth,
        faults: Faults,
        store: Arc<Store>,
        results: Arc<Results>,
        checkpoints: Checkpoints,
        registry: Registry,
    ) -> Self {
        Self {
            settings,
            auth,
            faults,
            closing: watch::Sender::new(false),
            store,
            results,
            checkpoints,
            losses: Mutex::default(),
            metrics: Metrics::default(),
            intake: Intake::new(memory.clone()),
            grammars: GrammarCompiler::new(memory.clone()),
            waiting: room_of(memory.plan().waiting),
            loss_room: room_of(memory.plan().losses),
            memory,
            under_way,
            imports: Arc::new(Semaphore::new(IMPORTS)),
            token_streams: TokenStreams::default(),
            activity: Arc::default(),
            event_streams: EventStreams::default(),
            step_turn: Semaphore::new(1),
            started: Instant::now(),
            folder_token: OnceLock::new(),
            folder_asked: Mutex::default(),
            demo: Demo::default(),
            findings: Findings::default(),
            registry: Mutex::new(registry),
        }
    }

    /// Returns the memory for what an owner has waiting.
    pub(crate) fn room(&self, owner: Owner) -> Room<'_> {
        Room {
            places: &self.waiting,
            owner,
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}
