//! Adapters in memory, for sampling.
//!
//! Every adapter that is sampled from lies in a folder; the ones used last are kept in memory too.
//! A training loop makes a new one at every step, so the oldest have to go.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tinkrs_backend::{Adapter, AdapterId, Backend, Error, Sampler};

/// How many adapters stay in memory.
const CAPACITY: usize = 32;

/// The adapters that a sampler has.
#[derive(Default)]
pub(super) struct Adapters {
    known: HashMap<PathBuf, Known>,
    clock: u64,
}

struct Known {
    id: AdapterId,
    last_used: u64,
}

impl Adapters {
    /// Returns the sampler's id of an adapter, loading it if need be.
    pub(super) fn find(
        &mut self,
        folder: &Path,
        backend: &dyn Backend,
        sampler: &mut dyn Sampler,
    ) -> Result<AdapterId, Error> {
        self.clock += 1;
        if let Some(known) = self.known.get_mut(folder) {
            known.last_used = self.clock;
            return Ok(known.id);
        }
        let adapter = backend.load_adapter(folder)?;
        self.add(folder.to_owned(), &adapter, sampler)
    }

    /// Adds an adapter in place of the one that lay in its folder before, and forgets the one not
    /// used for longest if there are too many.
    pub(super) fn add(
        &mut self,
        folder: PathBuf,
        adapter: &Adapter,
        sampler: &mut dyn Sampler,
    ) -> Result<AdapterId, Error> {
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

    /// Frees an adapter's memory. Samples under way keep theirs until they end.
    pub(super) fn forget(&mut self, folder: &Path, sampler: &mut dyn Sampler) {
        if let Some(known) = self.known.remove(folder) {
            sampler.remove_adapter(known.id);
        }
    }
}
