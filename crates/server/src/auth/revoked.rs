//! Keys that were revoked, in a file of the data folder.
//!
//! The file is replaced as a whole: a crash leaves the old one or the new one, and never half a line. So a line
//! that cannot be read was changed by somebody or something else, and may be of a key that was revoked: nothing is
//! served until somebody has looked at it, for leaving it out would admit that key again.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Owner;
use super::owner::NotAnOwner;
use crate::store::files;

/// The owners that are not admitted any more.
#[derive(Debug)]
pub(super) struct Revoked(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    owners: BTreeSet<Owner>,
    path: PathBuf,
}

/// A line that names no owner.
#[derive(Debug, thiserror::Error)]
#[error(
    "line {line} cannot be read, and may be of a key that was revoked; write it again as it was, or remove \
     it if every key that it may have been can be admitted"
)]
struct Unreadable {
    line: usize,
    source: NotAnOwner,
}

impl Revoked {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Bytes: a damaged file may be no text at all, and the line is to be named then, too.
        let bytes = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            bytes => bytes?,
        };
        let owners = read(&bytes)
            .map_err(|unreadable| io::Error::new(io::ErrorKind::InvalidData, unreadable))?;
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

fn read(bytes: &[u8]) -> Result<BTreeSet<Owner>, Unreadable> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty());
    lines
        .map(|(index, line)| {
            let owner = String::from_utf8_lossy(line).parse();
            owner.map_err(|source| Unreadable {
                line: index + 1,
                source,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_stay_revoked() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("revoked");
        let [one, two, three] = [b"tml-1", b"tml-2", b"tml-3"].map(|key| Owner::of_key(key));
        std::fs::write(&path, one.to_string()).unwrap();
        Revoked::open(&path).unwrap().add(two).unwrap();
        let again = Revoked::open(&path).unwrap();
        assert!(again.contains(one) && again.contains(two) && !again.contains(three));
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_and_readmits_nobody() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("revoked");
        let owner = Owner::of_key(b"tml-one");
        let bad: [&[u8]; 5] = [
            b"owner-12",
            b"owner-0123456789ABCDEF",
            b" ",
            b"\0\0",
            b"\xff",
        ];
        for line in bad {
            let text = [owner.to_string().as_bytes(), b"\n\n", line, b"\n"].concat();
            std::fs::write(&path, &text).unwrap();
            let refused = Revoked::open(&path).expect_err("it may be a key");
            assert!(refused.to_string().contains("line 3"), "{refused}");
            assert_eq!(std::fs::read(&path).unwrap(), text, "it is left as it is");
        }
    }
}
