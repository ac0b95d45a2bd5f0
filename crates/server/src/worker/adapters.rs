//! Adapters in memory, for sampling.
//!
//! Every adapter that is sampled from lies in a folder; the ones used last are kept in memory too, a few of
//! them and within a number of bytes. A training loop makes a new one at every step, so the oldest have to go. One that
//! samples are drawn with keeps its memory until they end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tinkrs_backend::{Adapter, AdapterId, Backend, Error, Need, Sampler};
use tinkrs_types::LoraConfig;

use super::STATE_FILE;
use crate::memory::Size;
use crate::store::manifest::{self, Damage};

/// How many adapters that no sample is drawn with stay in memory.
const UNUSED: usize = 32;

/// The adapters that a sampler has.
pub(super) struct Adapters {
    capacity: u64,
    known: HashMap<PathBuf, Known>,
    /// Adapters that are not known any longer, but that samples are still drawn with.
    leaving: Vec<InMemory>,
    clock: u64,
}

struct Known {
    id: AdapterId,
    memory: InMemory,
    last_used: u64,
}

/// An adapter's part of the memory, shared by the samples that are drawn with it.
#[derive(Clone, Debug)]
pub(super) struct InMemory(Arc<u64>);

impl InMemory {
    fn bytes(&self) -> u64 {
        *self.0
    }

    fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Why an adapter is not in memory.
#[derive(Debug)]
pub(super) enum NotLoaded {
    /// Others are in use; there will be room when their samples have ended.
    Wait,
    /// It is larger than all that there is.
    TooLarge {
        needed: u64,
        capacity: u64,
    },
    Damaged(Damage),
    Backend(Error),
}

impl std::fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wait => f.write_str("other adapters are in use"),
            Self::TooLarge { needed, capacity } => write!(
                f,
                "not enough memory: the adapter needs {}, and there are {} for adapters that are sampled \
                 from; the server's `--memory` changes that",
                Size(*needed),
                Size(*capacity),
            ),
            Self::Damaged(damage) => f.write_str(&crate::error::chain(damage)),
            Self::Backend(error) => f.write_str(&crate::error::chain(error)),
        }
    }
}

impl Adapters {
    /// Keeps adapters within this many bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            known: HashMap::new(),
            leaving: Vec::new(),
            clock: 0,
        }
    }

    /// Returns the sampler's id of an adapter, loading it if need be, and its part of the memory, which
    /// is to be held for as long as the adapter is used.
    pub(super) fn find(
        &mut self,
        folder: &Path,
        backend: &dyn Backend,
        sampler: &mut dyn Sampler,
    ) -> Result<(AdapterId, InMemory), NotLoaded> {
        self.clock += 1;
        if let Some(known) = self.known.get_mut(folder) {
            known.last_used = self.clock;
            return Ok((known.id, known.memory.clone()));
        }
        // Whoever waits for room comes here often, so the large files are read once there is some.
        let verified = manifest::verify(folder, |name| !name.ends_with(".safetensors"));
        verified.map_err(NotLoaded::Damaged)?;
        let rank = backend.adapter_rank(folder).map_err(NotLoaded::Backend)?;
        let lora = LoraConfig::new(u32::try_from(rank).unwrap_or(u32::MAX));
        let bytes = backend.memory(&Need::Adapter { lora });
        // What is read from the files is there beside it for a moment.
        let needed = bytes.saturating_mul(2);
        if needed > self.capacity {
            let capacity = self.capacity;
            return Err(NotLoaded::TooLarge { needed, capacity });
        }
        if !self.make_room(needed, sampler) {
            return Err(NotLoaded::Wait);
        }
        let verified = manifest::verify(folder, |name| name != STATE_FILE);
        verified.map_err(NotLoaded::Damaged)?;
        let adapter = backend.load_adapter(folder).map_err(NotLoaded::Backend)?;
        self.insert(folder.to_owned(), bytes, &adapter, sampler)
            .map_err(NotLoaded::Backend)
    }

    /// Adds an adapter in place of the one that lay in its folder before, if there is room.
    pub(super) fn add(
        &mut self,
        folder: PathBuf,
        bytes: u64,
        adapter: &Adapter,
        sampler: &mut dyn Sampler,
    ) {
        self.forget(&folder, sampler);
        // One that is not taken now is loaded from its folder when it is asked for.
        if self.make_room(bytes, sampler) {
            let _ = self.insert(folder, bytes, adapter, sampler);
        }
    }

    fn insert(
        &mut self,
        folder: PathBuf,
        bytes: u64,
        adapter: &Adapter,
        sampler: &mut dyn Sampler,
    ) -> Result<(AdapterId, InMemory), Error> {
        self.clock += 1;
        let id = sampler.add_adapter(adapter)?;
        let memory = InMemory(Arc::new(bytes));
        let known = Known {
            id,
            memory: memory.clone(),
            last_used: self.clock,
        };
        self.known.insert(folder, known);
        Ok((id, memory))
    }

    /// Forgets those that were not used for longest until there is room. Returns whether there is.
    fn make_room(&mut self, bytes: u64, sampler: &mut dyn Sampler) -> bool {
        self.leaving.retain(InMemory::is_used);
        loop {
            let known = self.known.values().map(|known| known.memory.bytes());
            let leaving = self.leaving.iter().map(InMemory::bytes);
            let used: u64 = known.chain(leaving).sum();
            let unused = self.known.iter().filter(|(_, one)| !one.memory.is_used());
            if used.saturating_add(bytes) <= self.capacity && unused.clone().count() < UNUSED {
                return true;
            }
            let oldest = unused.min_by_key(|(_, known)| known.last_used);
            let Some(folder) = oldest.map(|(folder, _)| folder.clone()) else {
                return false;
            };
            self.forget(&folder, sampler);
        }
    }

    /// Frees an adapter's memory. Samples under way keep theirs until they end.
    pub(super) fn forget(&mut self, folder: &Path, sampler: &mut dyn Sampler) {
        if let Some(known) = self.known.remove(folder) {
            sampler.remove_adapter(known.id);
            if known.memory.is_used() {
                self.leaving.push(known.memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::manifest::{About, Manifest};
    use tinkrs_backend::SamplerOptions;
    use tinkrs_testkit::FakeBackend;
    use tinkrs_types::training::OptimizerConfig;

    /// Adapters of rank 1 that need 100 bytes each, and as much again while they are loaded.
    fn saved(backend: &FakeBackend, root: &Path, name: &str) -> PathBuf {
        let folder = root.join(name);
        std::fs::create_dir(&folder).unwrap();
        let run = backend
            .create(&LoraConfig::new(1), &OptimizerConfig::AdamW)
            .unwrap();
        run.save_adapter(&folder, "tiny").unwrap();
        let described = Manifest::of_folder(&folder, |_| About::Checkpoints(Vec::new()));
        described
            .unwrap()
            .write(&folder.join(manifest::FILE))
            .unwrap();
        folder
    }

    #[test]
    fn adapters_stay_within_their_bytes_and_those_in_use_stay() {
        let root = tempfile::tempdir().unwrap();
        let backend = FakeBackend::new().needs_memory(200, 0);
        let mut sampler = backend.sampler(SamplerOptions::default());
        let sampler = &mut *sampler;
        let folders: Vec<_> = (0..4)
            .map(|number| saved(&backend, root.path(), &number.to_string()))
            .collect();
        let mut adapters = Adapters::new(390);
        let mut find = |adapters: &mut Adapters, number: usize| {
            adapters.find(&folders[number], &backend, sampler)
        };
        let (first, in_use) = find(&mut adapters, 0).unwrap();
        find(&mut adapters, 1).unwrap();
        find(&mut adapters, 2).unwrap();
        // The second left for the third; the first is in use.
        assert_eq!(adapters.known.len(), 2);
        assert_eq!(find(&mut adapters, 0).unwrap().0, first);
        let (_, also) = find(&mut adapters, 2).unwrap();
        assert!(matches!(find(&mut adapters, 3), Err(NotLoaded::Wait)));
        drop((in_use, also));
        find(&mut adapters, 3).unwrap();
        let mut small = Adapters::new(199);
        let error = find(&mut small, 0).unwrap_err().to_string();
        assert!(
            error.contains("needs 200 B, and there are 199 B"),
            "{error}"
        );
    }
}
