//! The state of a server: everything but its threads.
//!
//! A [`Server`](crate::Server) is a handle on its worker threads and on [`Shared`]. The threads have
//! `Shared` as well, so it holds nothing that keeps them alive: the ways to them and their handles are
//! with the server (see [`state`](crate::state)), and they end when the last handle is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tinkrs_types::LossId;
use tokio::sync::{Semaphore, watch};

use crate::auth::Auth;
use crate::checkpoints::Checkpoints;
use crate::faults::Faults;
use crate::intake::Intake;
use crate::lock::lock;
use crate::memory::Budget;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::results::Results;
use crate::settings::Settings;
use crate::store::Store;
use crate::token_watch::TokenStreams;
use crate::under_way::UnderWay;
use crate::uploaded_losses::UploadedLoss;

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
    pub(crate) under_way: UnderWay,
    /// How many more adapters may be imported at the same time.
    pub(crate) imports: Arc<Semaphore>,
    pub(crate) token_streams: TokenStreams,
    registry: Mutex<Registry>,
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
            memory,
            under_way,
            imports: Arc::new(Semaphore::new(IMPORTS)),
            token_streams: TokenStreams::default(),
            registry: Mutex::new(registry),
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}
