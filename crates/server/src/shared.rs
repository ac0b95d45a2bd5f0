//! What the handlers of requests and the threads that compute have in common.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tinkrs_types::LossId;
use tokio::sync::Semaphore;

use crate::api::losses::Uploaded;
use crate::checkpoints::Checkpoints;
use crate::lock::lock;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::results::Results;
use crate::settings::Settings;
use crate::store::Store;
use crate::watch::TokenStreams;

/// How many adapters are imported at the same time: each may take its archive's room on the disk.
const IMPORTS: usize = 2;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<Store>,
    pub(crate) results: Arc<Results>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) losses: Mutex<HashMap<LossId, Uploaded>>,
    pub(crate) metrics: Metrics,
    /// How many more adapters may be imported at the same time.
    pub(crate) imports: Arc<Semaphore>,
    pub(crate) token_streams: TokenStreams,
    registry: Mutex<Registry>,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        store: Arc<Store>,
        results: Arc<Results>,
        checkpoints: Checkpoints,
        registry: Registry,
    ) -> Self {
        Self {
            settings,
            store,
            results,
            checkpoints,
            losses: Mutex::default(),
            metrics: Metrics::default(),
            imports: Arc::new(Semaphore::new(IMPORTS)),
            token_streams: TokenStreams::default(),
            registry: Mutex::new(registry),
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}
