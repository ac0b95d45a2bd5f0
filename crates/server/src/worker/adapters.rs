//! Adapters in memory, for sampling.
//!
//! Every adapter that is sampled from lies in a folder; the ones used last are kept in memory too.
//! A training loop makes a new one at every step, so the oldest have to go.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tinkrs_engine::sample::{Sampler, WeightsId};
use tinkrs_engine::{Adapter, Error, Model, peft};

/// How many adapters stay in memory.
const CAPACITY: usize = 32;

/// The adapters that a sampler knows.
#[derive(Default)]
pub(super) struct Adapters {
    known: HashMap<PathBuf, Known>,
    clock: u64,
}

struct Known {
    id: WeightsId,
    last_used: u64,
}

impl Adapters {
    /// Returns the sampler's id of an adapter, loading it if need be.
    pub(super) fn find(
        &mut self,
        folder: &Path,
        model: &Model,
        sampler: &mut Sampler,
    ) -> Result<WeightsId, Error> {
        self.clock += 1;
        if let Some(known) = self.known.get_mut(folder) {
            known.last_used = self.clock;
            return Ok(known.id);
        }
        let stored = peft::load(folder, model.config())?;
        let adapter = Arc::new(Adapter::from_peft(model, &stored)?);
        self.add(folder.to_owned(), adapter, sampler)
    }

    /// Adds an adapter in place of the one that lay in its folder before, and forgets the one not
    /// used for longest if there are too many.
    pub(super) fn add(
        &mut self,
        folder: PathBuf,
        adapter: Arc<Adapter>,
        sampler: &mut Sampler,
    ) -> Result<WeightsId, Error> {
        self.clock += 1;
        self.forget(&folder, sampler);
        let id = sampler.add_adapter(adapter)?;
        let last_used = self.clock;
        self.known.insert(folder, Known { id, last_used });
        if self.known.len() > CAPACITY {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.last_used);
            if let Some(folder) = oldest.map(|(folder, _)| folder.clone()) {
                self.forget(&folder, sampler);
            }
        }
        Ok(id)
    }

    /// Frees an adapter's memory. Samples under way go on.
    pub(super) fn forget(&mut self, folder: &Path, sampler: &mut Sampler) {
        if let Some(known) = self.known.remove(folder) {
            sampler.remove_adapter(known.id);
        }
    }
}
