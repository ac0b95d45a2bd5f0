//! Making a data folder whole again.
//!
//! A database that can be read gets the rows that are missing (`complete`). One that cannot is replaced (`rebuild`):
//! by the rows that are still readable, and by what the saved weights say of themselves, which wins where both
//! speak. Runs that were open are closed then, for their journal is gone, and the newest snapshot of each becomes a
//! checkpoint. What both have in common is in `adopt`.
//!
//! Nothing is deleted. The database as it was is kept beside the new one, and what has no use goes to
//! `quarantine/`. A repair that is interrupted can be done again: files are moved before the database says so, and a new
//! database takes the place of the old one in steps that the next repair finishes ([`unfinished`]).

mod adopt;
mod complete;
mod rebuild;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::files::{self, Files};
use super::load::Loaded;
use super::{OpenError, lock_folder, orphans, survey};
use crate::data::DataReport;

pub(super) use rebuild::unfinished;

/// Why a run cannot be trained after its journal was lost.
const CLOSED: &str = "the server's database was repaired; load a checkpoint of it into a new model";

/// A repair under way.
struct Repair {
    files: Files,
    /// What is set aside goes under this name.
    dated: String,
    done: Vec<String>,
}

/// A folder for what is needed only meanwhile.
struct Scratch(PathBuf);

impl Scratch {
    fn new(files: &Files) -> io::Result<Self> {
        let folder = files.partial();
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        files::remove(&self.0);
    }
}

pub(crate) fn repair(root: &Path) -> Result<DataReport, OpenError> {
    survey::require_data_folder(root)?;
    let _guard = lock_folder(root)?;
    let files = Files::open(root)?;
    let mut repair = Repair {
        files: files.clone(),
        dated: files::dated(),
        done: Vec::new(),
    };
    // Copies of the database that a repair made before it was killed, among other things.
    files.remove_partial()?;
    repair.finish_replacing()?;
    {
        let scratch = Scratch::new(&files)?;
        let copy = survey::copy_database(&files, &scratch.0)?;
        match survey::read_database(&files, &copy) {
            Ok(Some(loaded)) => repair.complete(&loaded)?,
            Ok(None) if repair.has_weights() => repair.rebuild(&copy, &scratch.0)?,
            // A folder that was never used.
            Ok(None) => {}
            Err(OpenError::Damaged { .. } | OpenError::NotOurs(_)) => {
                repair.rebuild(&copy, &scratch.0)?;
            }
            Err(error) => return Err(error),
        }
    }
    let scratch = Scratch::new(&files)?;
    let report = survey::report(&files, &scratch.0)?;
    let done = repair.done;
    Ok(DataReport { done, ..report })
}

impl Repair {
    fn has_weights(&self) -> bool {
        let has_weights = |files: &Files| !files.weights().is_empty();
        has_weights(&self.files) || self.files.quarantined().iter().any(has_weights)
    }

    /// Returns a path beside the database.
    fn beside_database(&self, ending: &str) -> PathBuf {
        files::with_ending(&self.files.database(), ending)
    }

    /// Moves weights away that the database has no use for, and what else is `besides`.
    fn set_aside(&mut self, loaded: &Loaded, besides: Vec<PathBuf>) -> io::Result<()> {
        let known = orphans::known(&self.files, loaded);
        let mut unknown = self.files.weights();
        unknown.retain(|path| !known.contains(path));
        unknown.extend(besides);
        for path in &unknown {
            self.files.quarantine(path, &self.dated)?;
        }
        self.files.remove_empty_folders();
        if !unknown.is_empty() {
            self.done.push(format!(
                "moved {} that are not needed, or not described, to {}",
                counted(unknown.len(), "file or folder", "files and folders"),
                self.files
                    .root()
                    .join("quarantine")
                    .join(&self.dated)
                    .display()
            ));
        }
        Ok(())
    }
}

/// Why a repair failed.
enum RepairError {
    Database(rusqlite::Error),
    Io(io::Error),
}

impl RepairError {
    fn into_open_error(self, database: &Path) -> OpenError {
        match self {
            Self::Database(error) => OpenError::of_database(error, database),
            Self::Io(error) => error.into(),
        }
    }
}

impl From<rusqlite::Error> for RepairError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<io::Error> for RepairError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
