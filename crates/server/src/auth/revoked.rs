//! Keys that were revoked, in a file of the data folder that only grows.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Owner;

/// The owners that are not admitted any more.
#[derive(Debug)]
pub(super) struct Revoked(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    owners: BTreeSet<Owner>,
    file: File,
}

impl Revoked {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(path)?;
        let text = std::fs::read_to_string(path)?;
        // A line that a crash cut short is of a revocation that was never confirmed.
        let owners = text.lines().filter_map(|line| line.parse().ok()).collect();
        Ok(Self(Mutex::new(Inner { owners, file })))
    }

    pub(super) fn contains(&self, owner: Owner) -> bool {
        self.lock().owners.contains(&owner)
    }

    pub(super) fn add(&self, owner: Owner) -> io::Result<()> {
        let inner = &mut *self.lock();
        if inner.owners.contains(&owner) {
            return Ok(());
        }
        // It starts with a line break, in case a crash left a line without one.
        inner.file.write_all(format!("\n{owner}\n").as_bytes())?;
        inner.file.sync_all()?;
        inner.owners.insert(owner);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The set is changed by its last statement only, so a panic leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_is_skipped_and_does_not_spoil_the_next() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("revoked");
        std::fs::write(&path, "owner-12").unwrap();
        let owner = Owner::of_key(b"tml-one");
        Revoked::open(&path).unwrap().add(owner).unwrap();
        let again = Revoked::open(&path).unwrap();
        assert!(again.contains(owner));
        assert!(!again.contains(Owner::of_key(b"tml-two")));
    }
}
