//! Checkpoints: folders under the data folder, and what is known of them.
//!
//! A checkpoint is written into a folder of its own under `partial/` and renamed when it is whole.
//! The list of checkpoints lives in memory: a name that somebody sends is looked up there and
//! never becomes part of a path on the disk; names are checked when a checkpoint is made.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use tinkrs_types::{Checkpoint, InvalidInput, ModelId, TinkerPath, UserMetadata, WeightsInfo};

use crate::futures::lock;

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
    /// The engine could not write its files.
    #[error(transparent)]
    Engine(#[from] tinkrs_engine::Error),
}

/// A checkpoint to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewCheckpoint {
    pub(crate) path: TinkerPath,
    pub(crate) info: WeightsInfo,
    /// Whether a checkpoint of the same name is replaced; `None` where that cannot be asked for.
    pub(crate) overwrite: Option<bool>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) user_metadata: Option<UserMetadata>,
}

/// A checkpoint that exists.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) info: WeightsInfo,
    pub(crate) folder: PathBuf,
}

/// All checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    root: PathBuf,
    saved: Mutex<BTreeMap<TinkerPath, Saved>>,
}

impl Checkpoints {
    /// Uses a data folder, which is made if it is not there.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        for part in ["checkpoints", "samplers", "partial"] {
            fs::create_dir_all(root.join(part))?;
        }
        // Whatever an earlier process left half-written is of no use to anybody.
        for left in fs::read_dir(root.join("partial"))? {
            fs::remove_dir_all(left?.path())?;
        }
        Ok(Self {
            root: root.to_owned(),
            saved: Mutex::default(),
        })
    }

    /// Returns the folder of weights that only one sampling session uses.
    pub(crate) fn sampler_folder(&self, sampler: &str) -> PathBuf {
        self.root.join("samplers").join(file_name(sampler))
    }

    /// Finds a checkpoint that has not expired.
    pub(crate) fn find(&self, path: &TinkerPath) -> Option<Saved> {
        self.expire();
        lock(&self.saved).get(path).cloned()
    }

    /// Lists the checkpoints of a run, or of all, newest first.
    pub(crate) fn list(&self, run: Option<&ModelId>) -> Vec<Checkpoint> {
        self.expire();
        let saved = lock(&self.saved);
        let mut list: Vec<_> = saved
            .values()
            .filter(|saved| run.is_none_or(|run| saved.checkpoint.tinker_path.run() == run))
            .map(|saved| saved.checkpoint.clone())
            .collect();
        list.sort_by_key(|checkpoint| std::cmp::Reverse(checkpoint.time));
        list
    }

    /// Makes a checkpoint: `write` fills a new folder, which then appears under its name.
    pub(crate) fn save(
        &self,
        new: NewCheckpoint,
        write: impl FnOnce(&Path) -> Result<(), tinkrs_engine::Error>,
    ) -> Result<Saved, SaveError> {
        let exists = self.find(&new.path).is_some();
        if exists && new.overwrite != Some(true) {
            return Err(SaveError::Exists(new.path, new.overwrite.is_some()));
        }
        // A folder of its own for each save: readers of a replaced checkpoint keep theirs whole.
        let name = format!("{}.{:016x}", file_name(new.path.name()), fastrand::u64(..));
        let folder = self
            .root
            .join("checkpoints")
            .join(file_name(new.path.run().as_str()))
            .join(new.path.kind().segment())
            .join(name);
        let size_bytes = self.fill(&folder, write)?;
        let time = Timestamp::now();
        let checkpoint = Checkpoint {
            checkpoint_id: new.path.checkpoint_id(),
            checkpoint_type: new.path.kind(),
            time,
            tinker_path: new.path.clone(),
            size_bytes: Some(size_bytes),
            public: false,
            user_metadata: new.user_metadata,
            expires_at: new.ttl.and_then(|ttl| time.checked_add(ttl).ok()),
        };
        let saved = Saved {
            checkpoint,
            info: new.info,
            folder,
        };
        if let Some(old) = lock(&self.saved).insert(new.path, saved.clone()) {
            remove(&old.folder);
        }
        Ok(saved)
    }

    /// Fills a new folder and moves it to its place. Returns its size.
    pub(crate) fn fill(
        &self,
        folder: &Path,
        write: impl FnOnce(&Path) -> Result<(), tinkrs_engine::Error>,
    ) -> Result<u64, SaveError> {
        let name = format!("{:016x}", fastrand::u64(..));
        let partial = self.root.join("partial").join(name);
        let fill = || {
            fs::create_dir_all(&partial)?;
            write(&partial)?;
            let mut size_bytes = 0;
            for file in fs::read_dir(&partial)? {
                size_bytes += file?.metadata()?.len();
            }
            let parent = folder.parent().unwrap_or(&self.root);
            fs::create_dir_all(parent)?;
            fs::rename(&partial, folder)?;
            sync(parent)?;
            Ok(size_bytes)
        };
        let result = fill();
        if result.is_err() {
            remove(&partial);
        }
        result
    }

    /// Deletes what has outlived its time.
    fn expire(&self) {
        let now = Timestamp::now();
        let is_over = |saved: &Saved| saved.checkpoint.expires_at.is_some_and(|end| end <= now);
        lock(&self.saved).retain(|_, saved| {
            let over = is_over(saved);
            if over {
                remove(&saved.folder);
            }
            !over
        });
    }
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

/// Removes a folder. What cannot be removed is only lost space, and nobody's request fails for it.
pub(crate) fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %folder.display(), %error, "could not remove a folder");
    }
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Ids have colons, which some file systems do not take.
fn file_name(id: &str) -> String {
    id.replace(':', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, overwrite: Option<bool>) -> NewCheckpoint {
        NewCheckpoint {
            path: format!("tinker://s:train:0/weights/{name}")
                .parse()
                .unwrap(),
            info: WeightsInfo {
                base_model: "m".to_owned(),
                is_lora: true,
                optimizer_config: Default::default(),
                lora_rank: Some(8),
                train_unembed: None,
                train_mlp: None,
                train_attn: None,
            },
            overwrite,
            ttl: None,
            user_metadata: None,
        }
    }

    fn write(text: &'static str) -> impl FnOnce(&Path) -> Result<(), tinkrs_engine::Error> {
        move |folder| {
            fs::write(folder.join("state"), text).unwrap();
            Ok(())
        }
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
        let checkpoints = Checkpoints::open(root.path()).unwrap();
        let first = checkpoints.save(new("a", Some(false)), write("1")).unwrap();
        let refused = checkpoints
            .save(new("a", Some(false)), write("2"))
            .unwrap_err();
        assert!(refused.to_string().contains("overwrite"), "{refused}");
        let second = checkpoints.save(new("a", Some(true)), write("22")).unwrap();
        assert_eq!(second.checkpoint.size_bytes, Some(2));
        assert!(!first.folder.exists() && second.folder.exists());
        assert_eq!(
            fs::read_dir(root.path().join("partial")).unwrap().count(),
            0
        );
    }

    #[test]
    fn an_expired_checkpoint_and_its_files_are_gone() {
        let root = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(root.path()).unwrap();
        let ttl = Some(Duration::ZERO);
        let saved = checkpoints
            .save(
                NewCheckpoint {
                    ttl,
                    ..new("a", None)
                },
                write("1"),
            )
            .unwrap();
        assert!(checkpoints.find(&saved.checkpoint.tinker_path).is_none());
        assert!(!saved.folder.exists());
    }
}
