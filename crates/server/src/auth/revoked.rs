//! Keys that were revoked, in a file of the data folder.
//!
//! The file is replaced as a whole: a crash leaves the old one or the new one, and never half a line.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Owner;
use crate::store::files;

/// The owners that are not admitted any more.
#[derive(Debug)]
pub(super) struct Revoked(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    owners: BTreeSet<Owner>,
    path: PathBuf,
}

impl Revoked {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        // Earlier versions appended: a line that a crash cut short is of a revocation that was never
        // confirmed.
        let owners = text.lines().filter_map(|line| line.parse().ok()).collect();
        let path = path.to_owned();
        Ok(Self(Mutex::new(Inner { owners, path })))
    }

    pub(super) fn contains(&self, owner: Owner) -> bool {
        self.lock().owners.contains(&owner)
    }

    pub(super) fn add(&self, owner: Owner) -> io::Result<()> {
        let inner = &mut *self.lock();
        if inner.owners.contains(&owner) {
            return Ok(());
        }
        let all = inner.owners.iter().chain([&owner]);
        let text: String = all.map(|owner| format!("{owner}\n")).collect();
        files::replace(&inner.path, text.as_bytes())?;
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
