//! Checkpoints: folders under the data folder, and what is known of them.
//!
//! A checkpoint is written into a folder of its own under `partial/`, described by a manifest, synced, and
//! renamed when it is whole. A name that a client sends is looked up in the list and never becomes part of a path on
//! the disk unless it was checked.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tinkrs_types::rest::{Checkpoint, WeightsInfo};
use tinkrs_types::{InvalidInput, ModelId, SessionId, TinkerPath, UserMetadata};

use crate::auth::Owner;
use crate::lock::lock;
use crate::registry::records::SavedCheckpoint;
use crate::store::files::{file_name, remove};
use crate::store::manifest::{self, About, Manifest};
use crate::store::{Change, Store, WriteError};

/// The longest name of a checkpoint.
const NAME_LENGTH: usize = 200;

/// Why a checkpoint was not saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// The name is taken.
    #[error("ResourceAlreadyExists: there is a checkpoint `{0}` already; save under another name{hint}", hint = if *.1 { ", or overwrite it" } else { "" })]
    Exists(TinkerPath, bool),
    /// The disk refused.
    #[error("could not write the checkpoint")]
    Io(#[from] io::Error),
    /// The backend could not write its files.
    #[error(transparent)]
    Backend(#[from] tinkrs_backend::Error),
}

/// A checkpoint to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewCheckpoint {
    pub(crate) owner: Owner,
    pub(crate) path: TinkerPath,
    pub(crate) info: WeightsInfo,
    /// Whether a checkpoint of the same name is replaced; `None` where that cannot be asked for.
    pub(crate) overwrite: Option<bool>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) user_metadata: Option<UserMetadata>,
}

/// All checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    store: Arc<Store>,
    saved: Mutex<BTreeMap<TinkerPath, SavedCheckpoint>>,
}

impl Checkpoints {
    pub(crate) fn new(store: Arc<Store>, saved: Vec<SavedCheckpoint>) -> Self {
        let saved = saved.into_iter().map(|saved| (saved.path().clone(), saved));
        Self {
            store,
            saved: Mutex::new(saved.collect()),
        }
    }

    /// Returns the whole path of a folder in the data folder.
    pub(crate) fn folder(&self, relative: &Path) -> PathBuf {
        self.store.files().root().join(relative)
    }

    /// Returns the folder, in the data folder, of weights that only one sampling session uses.
    pub(crate) fn sampler_folder(sampler: &str) -> PathBuf {
        Path::new("samplers").join(file_name(sampler))
    }

    /// Finds a checkpoint that this owner may read.
    pub(crate) fn find(&self, owner: Owner, path: &TinkerPath) -> Option<SavedCheckpoint> {
        let saved = lock(&self.saved).get(path).cloned()?;
        let is_over = is_over(&saved, Timestamp::now());
        let may_read = saved.owner == owner || saved.checkpoint.public;
        (may_read && !is_over).then_some(saved)
    }

    /// Finds a checkpoint that this owner may change.
    pub(crate) fn find_own(&self, owner: Owner, path: &TinkerPath) -> Option<SavedCheckpoint> {
        self.find(owner, path).filter(|saved| saved.owner == owner)
    }

    /// Finds the whole path of a checkpoint's folder by the folder's own name.
    pub(crate) fn find_folder(&self, name: &str) -> Option<PathBuf> {
        let now = Timestamp::now();
        let saved = lock(&self.saved);
        let mut saved = saved.values().filter(|saved| !is_over(saved, now));
        let found = saved.find(|saved| saved.folder.file_name().is_some_and(|own| own == name))?;
        Some(self.folder(&found.folder))
    }

    /// Lists an owner's checkpoints, those of one run or all, newest first.
    pub(crate) fn list(&self, owner: Owner, run: Option<&ModelId>) -> Vec<Checkpoint> {
        let now = Timestamp::now();
        let saved = lock(&self.saved);
        let mut list: Vec<_> = saved
            .values()
            .filter(|saved| saved.owner == owner && !is_over(saved, now))
            .filter(|saved| run.is_none_or(|run| saved.path().run() == run))
            .map(|saved| saved.checkpoint.clone())
            .collect();
        list.sort_by_key(|checkpoint| std::cmp::Reverse(checkpoint.time));
        list
    }

    /// Lists an owner's checkpoints of all runs of a session.
    pub(crate) fn of_session(&self, owner: Owner, session: &SessionId) -> Vec<Checkpoint> {
        let prefix = format!("{session}:");
        let mut all = self.list(owner, None);
        all.retain(|checkpoint| checkpoint.tinker_path.run().as_str().starts_with(&prefix));
        all
    }

    /// Writes the files of a checkpoint: `write` fills a new folder. It appears under its name when
    /// [`replace`](Self::replace) is called.
    pub(crate) fn fill(
        &self,
        new: NewCheckpoint,
        write: impl FnOnce(&Path) -> Result<(), tinkrs_backend::Error>,
    ) -> Result<SavedCheckpoint, SaveError> {
        let exists = lock(&self.saved).get(&new.path).cloned();
        let now = Timestamp::now();
        if exists.is_some_and(|saved| !is_over(&saved, now)) && new.overwrite != Some(true) {
            return Err(SaveError::Exists(new.path, new.overwrite.is_some()));
        }
        // A folder of its own for each save: readers of a replaced checkpoint keep theirs whole.
        let name = format!("{}.{:016x}", file_name(new.path.name()), fastrand::u64(..));
        let folder = Path::new("checkpoints")
            .join(file_name(new.path.run().as_str()))
            .join(new.path.kind().segment())
            .join(name);
        let mut checkpoint = Checkpoint::new(new.path, Timestamp::now());
        checkpoint.user_metadata = new.user_metadata;
        let mut saved = SavedCheckpoint {
            owner: new.owner,
            checkpoint,
            info: new.info,
            folder: folder.clone(),
        };
        let describe = |size_bytes| {
            let checkpoint = &mut saved.checkpoint;
            let now = Timestamp::now();
            checkpoint.time = now;
            checkpoint.size_bytes = Some(size_bytes);
            checkpoint.expires_at = new.ttl.and_then(|ttl| now.checked_add(ttl).ok());
            About::Checkpoints(vec![saved.clone()])
        };
        self.fill_folder(&folder, write, describe)?;
        Ok(saved)
    }

    /// Fills a new folder and moves it to its place. `describe` is given the size of its files.
    pub(crate) fn fill_folder(
        &self,
        folder: &Path,
        write: impl FnOnce(&Path) -> Result<(), tinkrs_backend::Error>,
        describe: impl FnOnce(u64) -> About,
    ) -> Result<(), SaveError> {
        let files = self.store.files();
        let (partial, folder) = (files.partial(), files.root().join(folder));
        let fill = || {
            fs::create_dir_all(&partial)?;
            write(&partial)?;
            let manifest = Manifest::of_folder(&partial, describe)?;
            fs::write(partial.join(manifest::FILE), manifest.text())?;
            files.publish(&partial, &folder)?;
            Ok(())
        };
        let result = fill();
        if result.is_err() {
            remove(&partial);
        }
        result
    }

    /// Lists a checkpoint. Returns the one that had its name before, and what has to be stored.
    pub(crate) fn replace(&self, saved: SavedCheckpoint) -> (Option<SavedCheckpoint>, Change) {
        let mut all = lock(&self.saved);
        let before = all.insert(saved.path().clone(), saved.clone());
        let replaced = before.as_ref().map(|old| old.folder.clone());
        // A copy may share its folder; from here on no further one can be made.
        let replaced = replaced.filter(|folder| users(&all, folder) == 0);
        (before, Change::Checkpoint { saved, replaced })
    }

    /// Lists a checkpoint again that could not be replaced.
    pub(crate) fn add(&self, saved: SavedCheckpoint) {
        lock(&self.saved).insert(saved.path().clone(), saved);
    }

    /// Lists a checkpoint that shares the files of another one, if that is still there. From then on
    /// the files stay, whatever becomes of the other one.
    pub(crate) fn add_copy(&self, source: &TinkerPath, copy: SavedCheckpoint) -> bool {
        let mut all = lock(&self.saved);
        let shares = |saved: &SavedCheckpoint| saved.folder == copy.folder;
        let is_there = all.get(source).is_some_and(shares);
        if is_there {
            all.insert(copy.path().clone(), copy);
        }
        is_there
    }

    /// Changes what is known of a checkpoint, and completes when that is durable.
    pub(crate) async fn modify<E: From<WriteError>>(
        &self,
        owner: Owner,
        path: &TinkerPath,
        change: impl FnOnce(&mut Checkpoint) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let (before, written) = {
            let mut all = lock(&self.saved);
            let now = Timestamp::now();
            let saved = all
                .get_mut(path)
                .filter(|saved| saved.owner == owner && !is_over(saved, now))?;
            let before = saved.checkpoint.clone();
            if let Err(refused) = change(&mut saved.checkpoint) {
                saved.checkpoint = before;
                return Some(Err(refused));
            }
            let (saved, replaced) = (saved.clone(), None);
            // Under the lock: a deletion that comes later is also stored later.
            (
                before,
                self.store.write(Change::Checkpoint { saved, replaced }),
            )
        };
        let written = written.await;
        if written.is_err()
            && let Some(saved) = lock(&self.saved).get_mut(path)
        {
            saved.checkpoint = before;
        }
        Some(written.map_err(E::from))
    }

    /// Takes checkpoints off the list, and returns what has to be stored.
    pub(crate) fn take(&self, is_over: impl Fn(&SavedCheckpoint) -> bool) -> Vec<Change> {
        let mut all = lock(&self.saved);
        let over: Vec<_> = all
            .values()
            .filter(|saved| is_over(saved))
            .cloned()
            .collect();
        let mut changes = Vec::new();
        for saved in over {
            let path = saved.path().clone();
            let is_last = users(&all, &saved.folder) == 1;
            all.remove(&path);
            let folder = is_last.then_some(saved.folder);
            changes.push(Change::CheckpointGone { path, folder });
        }
        changes
    }

    /// Deletes what has outlived its time.
    pub(crate) fn expire(&self) {
        let now = Timestamp::now();
        for change in self.take(|saved| is_over(saved, now)) {
            self.store.note(change);
        }
    }

    /// Counts the bytes of all checkpoints. Copies share theirs.
    pub(crate) fn stored_bytes(&self) -> usize {
        let saved = lock(&self.saved);
        let folders = saved
            .values()
            .map(|s| (&s.folder, s.checkpoint.size_bytes.unwrap_or(0)));
        let folders: BTreeMap<_, _> = folders.collect();
        folders.values().sum::<u64>() as usize
    }

    /// Counts an owner's checkpoints and their bytes.
    pub(crate) fn totals(&self, owner: Owner) -> (u64, u64) {
        let now = Timestamp::now();
        let saved = lock(&self.saved);
        let saved = saved.values();
        let own: Vec<_> = saved
            .filter(|saved| saved.owner == owner && !is_over(saved, now))
            .collect();
        // Copies share a folder, which takes its room once.
        let folders: BTreeMap<_, _> = own
            .iter()
            .map(|saved| (&saved.folder, saved.checkpoint.size_bytes))
            .collect();
        (own.len() as u64, folders.into_values().flatten().sum())
    }
}

fn is_over(saved: &SavedCheckpoint, now: Timestamp) -> bool {
    saved.checkpoint.expires_at.is_some_and(|end| end <= now)
}

/// Counts the checkpoints that share a folder: a copy has no files of its own.
fn users(all: &BTreeMap<TinkerPath, SavedCheckpoint>, folder: &Path) -> usize {
    all.values().filter(|saved| saved.folder == folder).count()
}

/// Checks the name that a checkpoint is to be saved under.
pub(crate) fn check_name(name: &str) -> Result<(), InvalidInput> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let only_dots = name.bytes().all(|byte| byte == b'.');
    if only_dots || name.len() > NAME_LENGTH || !name.bytes().all(is_plain) {
        return Err(InvalidInput::new(
            "path",
            format_args!("`{}`", name.chars().take(NAME_LENGTH).collect::<String>()),
            format!("a name of 1 to {NAME_LENGTH} letters, digits, `_`, `.` and `-`"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::of_key(b"me")
    }

    fn new(name: &str, overwrite: Option<bool>) -> NewCheckpoint {
        NewCheckpoint {
            owner: owner(),
            path: format!("tinker://s:train:0/weights/{name}")
                .parse()
                .unwrap(),
            info: WeightsInfo::new("m", &Default::default()),
            overwrite,
            ttl: None,
            user_metadata: None,
        }
    }

    fn write(text: &'static str) -> impl FnOnce(&Path) -> Result<(), tinkrs_backend::Error> {
        move |folder| {
            fs::write(folder.join("state"), text).unwrap();
            Ok(())
        }
    }

    fn save(
        checkpoints: &Checkpoints,
        new: NewCheckpoint,
        text: &'static str,
    ) -> Result<SavedCheckpoint, SaveError> {
        let saved = checkpoints.fill(new, write(text))?;
        let (_, change) = checkpoints.replace(saved.clone());
        checkpoints.store.write_blocking(change).unwrap();
        Ok(saved)
    }

    fn open(root: &Path) -> Checkpoints {
        let (store, loaded) = Store::open(root).unwrap();
        Checkpoints::new(Arc::new(store), loaded.checkpoints)
    }

    #[test]
    fn names_cannot_leave_the_folder() {
        for good in ["a", "step-0001", "v1.2_final", "..a"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        let long = "a".repeat(NAME_LENGTH + 1);
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a\\b",
            "a b",
            "é",
            "a\0",
            long.as_str(),
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_taken_once_unless_it_is_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let checkpoints = open(root.path());
        let first = save(&checkpoints, new("a", Some(false)), "1").unwrap();
        let refused = save(&checkpoints, new("a", Some(false)), "2").unwrap_err();
        assert!(refused.to_string().contains("overwrite"), "{refused}");
        let second = save(&checkpoints, new("a", Some(true)), "22").unwrap();
        assert_eq!(second.checkpoint.size_bytes, Some(2));
        let exists = |saved: &SavedCheckpoint| checkpoints.folder(&saved.folder).exists();
        assert!(!exists(&first) && exists(&second));
        assert_eq!(
            fs::read_dir(root.path().join("partial")).unwrap().count(),
            0
        );
    }

    #[test]
    fn checkpoints_are_there_after_a_restart_and_half_written_ones_are_not() {
        let root = tempfile::tempdir().unwrap();
        let checkpoints = open(root.path());
        let saved = save(&checkpoints, new("a", None), "1").unwrap();
        let unsaved = checkpoints.fill(new("b", None), write("2")).unwrap();
        drop(checkpoints);
        let checkpoints = open(root.path());
        assert!(checkpoints.find(owner(), saved.path()).is_some());
        assert!(checkpoints.folder(&saved.folder).exists());
        assert!(!checkpoints.folder(&unsaved.folder).exists());
    }

    #[test]
    fn an_expired_checkpoint_and_its_files_are_gone() {
        let root = tempfile::tempdir().unwrap();
        let checkpoints = open(root.path());
        let ttl = Some(Duration::ZERO);
        let new = NewCheckpoint {
            ttl,
            ..new("a", None)
        };
        let saved = save(&checkpoints, new, "1").unwrap();
        assert!(checkpoints.find(owner(), saved.path()).is_none());
        checkpoints.expire();
        checkpoints.store.write_blocking(Change::Nothing).unwrap();
        assert!(!checkpoints.folder(&saved.folder).exists());
    }

    #[test]
    fn a_folder_goes_with_the_last_checkpoint_that_shares_it() {
        let root = tempfile::tempdir().unwrap();
        let checkpoints = open(root.path());
        let saved = save(&checkpoints, new("a", None), "1").unwrap();
        let mut copy = saved.clone();
        copy.checkpoint.tinker_path = "tinker://t:train:0/weights/a".parse().unwrap();
        checkpoints.add(copy.clone());
        for (gone, still_there) in [(&saved, true), (&copy, false)] {
            for change in checkpoints.take(|saved| saved.path() == gone.path()) {
                checkpoints.store.write_blocking(change).unwrap();
            }
            assert_eq!(checkpoints.folder(&saved.folder).exists(), still_there);
        }
    }
}
