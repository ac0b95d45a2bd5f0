//! Owners who logged out everywhere, and when, in a file of the data folder.
//!
//! What was signed for such an owner until then is not taken any more. As in [`revoked`](super::revoked), the file is
//! replaced as a whole, and a line that cannot be read stops the server: leaving it out would let somebody in again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use jiff::Timestamp;

use super::Owner;
use crate::lock::lock;
use crate::store::files;

/// The moment of the last such logout, by owner.
#[derive(Debug)]
pub(super) struct LoggedOut {
    since: Mutex<BTreeMap<Owner, Timestamp>>,
    path: PathBuf,
}

impl LoggedOut {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let lines = text.lines().enumerate();
        let since = lines.map(|(index, line)| {
            let unreadable = || {
                let why = format!("line {} is not an owner and a time", index + 1);
                io::Error::new(io::ErrorKind::InvalidData, why)
            };
            let (owner, time) = line.split_once(' ').ok_or_else(unreadable)?;
            let time: i64 = time.parse().map_err(|_| unreadable())?;
            let time = Timestamp::from_millisecond(time).map_err(|_| unreadable())?;
            Ok((owner.parse().map_err(|_| unreadable())?, time))
        });
        Ok(Self {
            since: Mutex::new(since.collect::<io::Result<_>>()?),
            path: path.to_owned(),
        })
    }

    /// Returns whether what was signed for an owner at this time is taken.
    pub(super) fn takes(&self, owner: Owner, issued: Timestamp) -> bool {
        lock(&self.since)
            .get(&owner)
            .is_none_or(|since| issued > *since)
    }

    /// Takes nothing any more that was signed for an owner until now.
    pub(super) fn set(&self, owner: Owner, now: Timestamp) -> io::Result<()> {
        let mut since = lock(&self.since);
        let mut all = since.clone();
        all.insert(owner, now);
        let lines = all
            .iter()
            .map(|(owner, time)| format!("{owner} {}\n", time.as_millisecond()));
        files::replace(&self.path, lines.collect::<String>().as_bytes())?;
        *since = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    #[test]
    fn what_was_signed_before_is_not_taken_also_after_a_restart() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("logged-out");
        let [one, two] = [b"tml-1", b"tml-2"].map(|key| Owner::of_key(key));
        let logged_out = LoggedOut::open(&path).unwrap();
        assert!(logged_out.takes(one, at(0)));
        logged_out.set(one, at(1000)).unwrap();
        for logged_out in [logged_out, LoggedOut::open(&path).unwrap()] {
            assert!(!logged_out.takes(one, at(999)) && !logged_out.takes(one, at(1000)));
            assert!(logged_out.takes(one, at(1001)) && logged_out.takes(two, at(0)));
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("logged-out");
        let owner = Owner::of_key(b"tml-1");
        for line in [
            "x 1",
            "owner",
            "",
            &format!("{owner} soon"),
            &owner.to_string(),
        ] {
            std::fs::write(&path, format!("{owner} 1\n{line}\n")).unwrap();
            let refused = LoggedOut::open(&path).unwrap_err();
            assert!(refused.to_string().contains("line 2"), "{line}: {refused}");
        }
    }
}
