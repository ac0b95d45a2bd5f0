//! A data folder without a server: what is wrong with it, and making it whole again.
//!
//! Everything that is saved describes itself, so a database that is lost or damaged can be written again
//! from what lies beside it. Checking reads only. Repairing never deletes: what it replaces or cannot use is kept
//! under another name.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::store::{repair as repairing, survey};

/// What is in a data folder, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DataReport {
    /// The folder.
    pub folder: PathBuf,
    /// How many checkpoints the database lists.
    pub checkpoints: usize,
    /// How many files of weights were read and compared with their digests.
    pub files: usize,
    /// What a repair has done; empty after a check, and if there was nothing to do.
    pub done: Vec<String>,
    /// What is wrong.
    pub problems: Vec<DataProblem>,
}

/// Something that is wrong with a data folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DataProblem {
    /// Where.
    pub path: PathBuf,
    /// What is wrong there.
    pub problem: String,
    /// Whether [`repair`] can do something about it.
    pub repairable: bool,
}

/// Why a data folder could not be checked or repaired.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DataError(#[from] pub(crate) Box<dyn std::error::Error + Send + Sync>);

/// Reads everything in a data folder and says what is wrong. Nothing in the folder is changed; a copy of the
/// database is made in `scratch`.
///
/// # Errors
///
/// When a server uses the folder, it is of another version, or it cannot be read.
pub fn check(folder: &Path, scratch: &Path) -> Result<DataReport, DataError> {
    survey::check(folder, scratch).map_err(|error| DataError(error.into()))
}

/// Writes what is missing in the database from what is saved beside it, or the whole database if it is
/// missing or damaged. The database as it was is kept under a dated name.
///
/// # Errors
///
/// When a server uses the folder, it is of another version, or it cannot be read or written.
pub fn repair(folder: &Path) -> Result<DataReport, DataError> {
    repairing::repair(folder).map_err(|error| DataError(error.into()))
}
