//! A folder that appears under its name when it is complete, and not before.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::base::TEXT_FILES;
use crate::{ADAPTER_FILE, Error, MODEL_FILE};

/// What exports write beside the tokenizer's files.
const FILES: [&str; 9] = [
    "Modelfile",
    "adapter_config.json",
    "adapter_model.safetensors",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    MODEL_FILE,
    ADAPTER_FILE,
];

/// A folder beside the one that is meant, gone when this is dropped.
#[derive(Debug)]
pub struct Staging {
    target: PathBuf,
    folder: TempDir,
}

impl Staging {
    /// Makes the folder. What the target has is looked at now, so that nobody waits for an export that has no place.
    ///
    /// # Errors
    ///
    /// When the target is a file, is not empty and may not be replaced, has something that no export writes, or
    /// when the disk refuses.
    pub fn new(target: &Path, overwrite: bool) -> Result<Self, Error> {
        check(target, overwrite)?;
        // `.` has its parent in its real path alone.
        let target = target.canonicalize().unwrap_or(target.to_owned());
        let parent = target
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        let folder = beside(parent)?;
        Ok(Self { target, folder })
    }

    /// Refuses a target that has what is exported: it would be gone in the end.
    ///
    /// # Errors
    ///
    /// When the source is in the target, or is the target.
    pub fn spare(&self, source: &Path) -> Result<(), Error> {
        let target = self.target.canonicalize();
        match (target, source.canonicalize()) {
            (Ok(target), Ok(source)) if source.starts_with(&target) => Err(Error::Source(source)),
            _ => Ok(()),
        }
    }

    /// Returns where to write.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts the folder where it is meant to be.
    ///
    /// # Errors
    ///
    /// When something has come there meanwhile, or the disk refuses.
    pub fn finish(self, overwrite: bool) -> Result<(), Error> {
        check(&self.target, overwrite)?;
        // Temporary folders are for their owner alone; this one is a folder like any other now.
        share_like_others(self.folder.path(), &self.target)?;
        let target = &self.target;
        let write = Error::io("write", target);
        if target.exists() {
            // Moved aside, so that there is always one of the two.
            let parent = target.parent().unwrap_or(Path::new("."));
            let earlier = beside(parent)?;
            let aside = earlier.path().join("earlier");
            std::fs::rename(target, &aside).map_err(Error::io("replace", target))?;
            if let Err(error) = std::fs::rename(self.folder.path(), target) {
                let _ = std::fs::rename(&aside, target);
                return Err(write(error));
            }
        } else {
            std::fs::rename(self.folder.path(), target).map_err(write)?;
        }
        // Nothing is left to remove.
        let _ = self.folder.keep();
        Ok(())
    }
}

/// Makes a folder that is gone when it is dropped.
fn beside(parent: &Path) -> Result<TempDir, Error> {
    tempfile::Builder::new()
        .prefix(".tinkrs-export-")
        .tempdir_in(parent)
        .map_err(Error::io("create a folder in", parent))
}

fn check(target: &Path, overwrite: bool) -> Result<(), Error> {
    let entries = match std::fs::read_dir(target) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("read the folder", target)(error)),
    };
    for entry in entries {
        if !overwrite {
            return Err(Error::Occupied(target.to_owned()));
        }
        let entry = entry.map_err(Error::io("read", target))?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        if is_folder || !is_of_export(&name.to_string_lossy()) {
            return Err(Error::NotAnExport {
                folder: target.to_owned(),
                found: name.into(),
            });
        }
    }
    Ok(())
}

/// Returns whether a file has a name that exports write.
fn is_of_export(name: &str) -> bool {
    let is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    is_shard || FILES.contains(&name) || TEXT_FILES.contains(&name)
}

/// Gives a folder the permissions that the system gives to new ones.
fn share_like_others(folder: &Path, target: &Path) -> Result<(), Error> {
    let probe = folder.join(".probe");
    let made = std::fs::create_dir(&probe).and_then(|()| {
        let permissions = std::fs::metadata(&probe)?.permissions();
        std::fs::remove_dir(&probe)?;
        std::fs::set_permissions(folder, permissions)
    });
    made.map_err(Error::io("write", target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_appears_when_it_is_complete() {
        let parent = tempfile::tempdir().unwrap();
        let target = parent.path().join("a/b");
        let staging = Staging::new(&target, false).unwrap();
        std::fs::write(staging.path().join("config.json"), "1").unwrap();
        assert!(!target.exists());
        staging.finish(false).unwrap();
        assert_eq!(
            std::fs::read_to_string(target.join("config.json")).unwrap(),
            "1"
        );
        drop(Staging::new(&target, true).unwrap());
        let left = std::fs::read_dir(parent.path().join("a")).unwrap().count();
        assert_eq!(left, 1, "nothing of one that was given up");
        assert!(
            target.join("config.json").exists(),
            "and what was there is still there"
        );
    }

    #[test]
    fn an_earlier_export_is_only_replaced_when_asked() {
        let target = tempfile::tempdir().unwrap();
        Staging::new(target.path(), false)
            .unwrap()
            .finish(false)
            .unwrap();
        let file = target.path().join("config.json");
        std::fs::write(&file, "1").unwrap();
        let refused = Staging::new(target.path(), false).unwrap_err();
        assert!(matches!(refused, Error::Occupied(_)), "{refused}");
        assert!(Staging::new(&file, true).is_err(), "a file is no folder");
        let staging = Staging::new(target.path(), true).unwrap();
        staging.finish(true).unwrap();
        assert!(!file.exists());
        let left = std::fs::read_dir(target.path()).unwrap().count();
        assert_eq!(left, 0, "nothing of what was replaced");
    }

    #[test]
    fn a_folder_with_other_things_in_it_is_never_replaced() {
        for (name, is_folder) in [("mine.txt", false), ("config.json", true), (".git", true)] {
            let target = tempfile::tempdir().unwrap();
            std::fs::write(target.path().join("model.gguf"), "1").unwrap();
            let other = target.path().join(name);
            if is_folder {
                std::fs::create_dir(&other).unwrap();
            } else {
                std::fs::write(&other, "1").unwrap();
            }
            let refused = Staging::new(target.path(), true).unwrap_err();
            assert!(refused.to_string().contains(name), "{refused}");
            assert!(other.exists());
        }
    }

    #[test]
    fn what_is_exported_is_not_replaced_by_its_export() {
        let target = tempfile::tempdir().unwrap();
        let source = target.path().join("model.gguf");
        std::fs::write(&source, "1").unwrap();
        let staging = Staging::new(target.path(), true).unwrap();
        for source in [&source, target.path()] {
            assert!(staging.spare(source).is_err(), "{}", source.display());
        }
        staging.spare(&std::env::temp_dir()).unwrap();
    }
}
