//! A data folder without a server: what is wrong with it, and making it whole again.
//!
//! Everything that is saved describes itself, so a database that is lost or damaged can be written again
//! from what lies beside it. Checking reads only. Repairing never deletes: what it replaces or cannot use is kept
//! under another name.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::permissions;
pub use crate::permissions::Privacy;
use crate::store::files;
use crate::store::{repair as repairing, survey};

/// What is in a data folder, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DataReport {
    /// The folder.
    #[serde(serialize_with = "as_text")]
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
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// What is wrong there.
    pub problem: String,
    /// Whether [`repair`] can do something about it.
    pub repairable: bool,
}

/// Names need not be text, but JSON is.
fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// Why a data folder could not be checked or repaired.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DataError(#[from] pub(crate) Box<dyn std::error::Error + Send + Sync>);

/// Makes a data folder that only its owner can enter, or closes the one that is there, before anything is put
/// into it. [`Server::start`](crate::Server::start) does the same.
///
/// # Errors
///
/// When the system refuses, or something else is in its place.
pub fn make_private(folder: &Path) -> std::io::Result<Privacy> {
    files::make_root(folder, permissions::make_private_folder)
}

/// Reads everything in a data folder and says what is wrong. Nothing in the folder is changed; a copy of the
/// database is made in `scratch`.
///
/// # Errors
///
/// When a server uses the folder, it is of another version, or it cannot be read.
pub fn check(folder: &Path, scratch: &Path) -> Result<DataReport, DataError> {
    survey::check(folder, scratch).map_err(|error| DataError(error.into()))
}

/// Reads the database of a data folder, and returns how many checkpoints it lists. This is quick: no file of weights
/// is read. Nothing in the folder is changed; a copy of the database is made in `scratch`.
///
/// # Errors
///
/// When a server uses the folder, it is of another version, or the database is damaged.
pub fn check_database(folder: &Path, scratch: &Path) -> Result<usize, DataError> {
    survey::check_database(folder, scratch).map_err(|error| DataError(error.into()))
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
