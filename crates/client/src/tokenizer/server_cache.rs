//! Tokenizers that servers have sent, on this machine's disk.
//!
//! Each is a folder that is named by the digest of its files, so that what one server sends cannot take the place
//! of what another has sent. `of-…` says which digest a model of a server had last.
//!
//! Invariants: a folder is there only if it is whole; nothing is read whose digest is another; and there are at
//! most [`FOLDERS`] of them, whatever servers send.

use ring::digest::{Context, SHA256, digest};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use tinkrs_wire::op::tokenizer::{FILES, hash_files};
use tinkrs_wire::text::hex;

/// How many tokenizers are kept.
const FOLDERS: usize = 16;

/// The texts of a tokenizer's files by their names.
pub(super) type Files = BTreeMap<String, String>;

/// A folder of tokenizers.
#[derive(Clone, Debug)]
pub(super) struct ServerCache(PathBuf);

impl ServerCache {
    /// Takes the user's folder for caches.
    pub(super) fn from_variables(
        variable: impl Fn(&str) -> Option<std::ffi::OsString>,
    ) -> Option<Self> {
        let folder = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(PathBuf::from)
        };
        let user = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
        Some(Self(user.join("tinkrs").join("tokenizers")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Returns the digest of what a server sent last for a model, if that is still here.
    pub(super) fn known(&self, server: &str, model: &str) -> Option<String> {
        let digest = std::fs::read_to_string(self.pointer(server, model)).ok()?;
        self.folder(&digest).map(|_| digest)
    }

    /// Returns the folder with files of this digest, if it is here and has them.
    pub(super) fn folder(&self, digest: &str) -> Option<PathBuf> {
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_digest {
            return None;
        }
        let folder = self.0.join(digest);
        let mut files = Files::new();
        for name in FILES {
            match std::fs::read_to_string(folder.join(name)) {
                Ok(text) => files.insert(name.to_owned(), text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => return None,
            };
        }
        (digest_of(&files) == digest).then_some(folder)
    }

    /// Keeps files that were sent, and returns their folder.
    pub(super) fn keep(
        &self,
        server: &str,
        model: &str,
        digest: &str,
        files: &Files,
    ) -> io::Result<PathBuf> {
        let folder = match self.folder(digest) {
            Some(folder) => folder,
            None => self.write(digest, files)?,
        };
        // Replaced in one step: another process may read it.
        let part = self.part();
        std::fs::write(&part, digest)?;
        std::fs::rename(&part, self.pointer(server, model))
            .inspect_err(|_| drop(std::fs::remove_file(&part)))?;
        self.make_room(digest);
        Ok(folder)
    }

    fn write(&self, digest: &str, files: &Files) -> io::Result<PathBuf> {
        let part = self.part();
        let folder = self.0.join(digest);
        let write = || {
            std::fs::create_dir_all(&part)?;
            for name in FILES {
                if let Some(text) = files.get(name) {
                    std::fs::write(part.join(name), text)?;
                }
            }
            // What is there has other files than its name says, or another process was as fast.
            if std::fs::rename(&part, &folder).is_err() && self.folder(digest).is_none() {
                std::fs::remove_dir_all(&folder)?;
                std::fs::rename(&part, &folder)?;
            }
            Ok(())
        };
        let written = write();
        let _ = std::fs::remove_dir_all(&part);
        written.map(|()| folder)
    }

    /// Removes what was sent longest ago.
    fn make_room(&self, keep: &str) {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let folders = entries.filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            let is_other = metadata.is_dir() && entry.file_name() != keep;
            is_other.then_some((metadata.modified().ok()?, entry.path()))
        });
        let mut folders: Vec<_> = folders.collect();
        folders.sort();
        let surplus = (folders.len() + 1).saturating_sub(FOLDERS);
        for (_, folder) in folders.into_iter().take(surplus) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    fn pointer(&self, server: &str, model: &str) -> PathBuf {
        let key = digest(&SHA256, format!("{server}\0{model}").as_bytes());
        self.0.join(format!("of-{}", hex(&key.as_ref()[..16])))
    }

    fn part(&self) -> PathBuf {
        self.0.join(format!(".{:016x}.part", fastrand::u64(..)))
    }
}

/// Returns the digest of files.
pub(super) fn digest_of(files: &Files) -> String {
    let mut hash = Context::new(&SHA256);
    let texts = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()));
    hash_files(texts, |part| hash.update(part));
    hex(hash.finish().as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(text: &str) -> Files {
        [("tokenizer.json".to_owned(), text.to_owned())].into()
    }

    fn folders(cache: &Path) -> usize {
        let entries = std::fs::read_dir(cache).unwrap().map(Result::unwrap);
        entries.filter(|entry| entry.path().is_dir()).count()
    }

    #[test]
    fn what_is_kept_is_found_until_it_is_not_what_its_name_says() {
        let home = tempfile::tempdir().unwrap();
        let cache = ServerCache::at(home.path().join("cache"));
        assert_eq!(cache.known("http://one", "m"), None);
        let digest = digest_of(&files("a"));
        let folder = cache.keep("http://one", "m", &digest, &files("a")).unwrap();
        assert_eq!(cache.known("http://one", "m").as_deref(), Some(&*digest));
        assert_eq!(cache.known("http://other", "m"), None);
        assert_eq!(cache.folder(&digest), Some(folder.clone()));
        std::fs::write(folder.join("tokenizer.json"), "b").unwrap();
        assert_eq!(cache.known("http://one", "m"), None);
        cache.keep("http://one", "m", &digest, &files("a")).unwrap();
        assert_eq!(cache.folder(&digest), Some(folder));
        for not_one in ["", "..", "../x", &digest[1..]] {
            assert_eq!(cache.folder(not_one), None);
        }
    }

    #[test]
    fn a_server_that_always_sends_something_else_does_not_fill_the_disk() {
        let home = tempfile::tempdir().unwrap();
        let cache = ServerCache::at(home.path());
        for number in 0..FOLDERS + 4 {
            let files = files(&number.to_string());
            cache
                .keep("http://one", "m", &digest_of(&files), &files)
                .unwrap();
        }
        assert_eq!(folders(home.path()), FOLDERS);
        let last = digest_of(&files(&(FOLDERS + 3).to_string()));
        assert_eq!(cache.known("http://one", "m"), Some(last));
    }
}
