//! Names of files, as records have them.
//!
//! Rows of the database and manifests say which files they are about. A data folder may come from anywhere, so what
//! they say is checked when it is read: a name that leads elsewhere, out of the folder or to another part of it, is damage,
//! and no path is made of it.

use std::path::{Component, Path};

use super::Loaded;
use super::files::{Files, file_name};
use super::tables::requests::LoadedRequest;
use crate::registry::records::{RunRecord, SamplerRecord, SavedCheckpoint, SessionRecord};

/// A record that leads elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("it names `{0}`, which is not a place for such files in the data folder")]
pub(super) struct Stray(String);

/// A record that may name files of the data folder.
pub(super) trait NamesFiles {
    /// Refuses names that lead elsewhere.
    fn check_names(&self) -> Result<(), Stray>;
}

impl NamesFiles for SessionRecord {
    fn check_names(&self) -> Result<(), Stray> {
        Ok(())
    }
}

impl NamesFiles for RunRecord {
    fn check_names(&self) -> Result<(), Stray> {
        check_name(&file_name(self.id.as_str()))
    }
}

impl NamesFiles for SamplerRecord {
    fn check_names(&self) -> Result<(), Stray> {
        self.adapter.as_deref().map_or(Ok(()), check_home)
    }
}

impl NamesFiles for SavedCheckpoint {
    fn check_names(&self) -> Result<(), Stray> {
        check_home(&self.folder)?;
        check_name(&file_name(self.path().run().as_str()))
    }
}

impl NamesFiles for LoadedRequest {
    fn check_names(&self) -> Result<(), Stray> {
        check_name(self.id.as_str())
    }
}

impl NamesFiles for Loaded {
    fn check_names(&self) -> Result<(), Stray> {
        let Self {
            runs,
            samplers,
            checkpoints,
            requests,
            removals,
            // Nothing of these becomes a path.
            epoch: _,
            sessions: _,
            losses: _,
        } = self;
        runs.iter().try_for_each(|run| run.record.check_names())?;
        samplers.iter().try_for_each(NamesFiles::check_names)?;
        checkpoints.iter().try_for_each(NamesFiles::check_names)?;
        requests.iter().try_for_each(NamesFiles::check_names)?;
        // All snapshots of a run are one removal.
        removals
            .iter()
            .try_for_each(|path| check_path(path, |depth, deepest| (1..=deepest).contains(&depth)))
    }
}

/// Refuses what is not the name of a file in a folder.
pub(super) fn check_name(name: &str) -> Result<(), Stray> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(()),
        _ => Err(Stray(name.to_owned())),
    }
}

/// Refuses a path, in the data folder, where weights cannot be.
fn check_home(path: &Path) -> Result<(), Stray> {
    check_path(path, |depth, deepest| depth == deepest)
}

/// Refuses a path that is not in a folder of weights. `is_right` is given how deep it is there, and how deep weights are.
fn check_path(path: &Path, is_right: impl Fn(usize, usize) -> bool) -> Result<(), Stray> {
    let is_below = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let is_weights = Files::WEIGHTS.iter().any(|(folder, deepest)| {
        let inside = path.strip_prefix(folder);
        inside.is_ok_and(|inside| is_right(inside.components().count(), *deepest as usize))
    });
    if is_below && is_weights {
        Ok(())
    } else {
        Err(Stray(path.to_string_lossy().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder_and_paths_in_the_data_folder() {
        for good in ["a", "..a", "s.train.0", "a\nb"] {
            check_name(good).unwrap();
            check_home(&Path::new("samplers").join(good)).unwrap();
        }
        for bad in ["", ".", "..", "../a", "a/b", "a/", "/a", "/"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        check_home(Path::new("checkpoints/run/weights/a")).unwrap();
        for bad in [
            "",
            "..",
            "../a",
            "a/../../b",
            "/etc/passwd",
            "./samplers/a",
            "samplers/../a",
            // Other parts of the data folder.
            "lock",
            "samplers",
            "checkpoints/run",
            "checkpoints/run/weights",
            "quarantine/a",
        ] {
            let error = check_home(Path::new(bad)).unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")), "{error}");
        }
    }
}
