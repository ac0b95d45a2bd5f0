//! Reads what an earlier process left behind.

use std::path::PathBuf;

use rusqlite::types::Type;
use rusqlite::{Connection, Error};

use super::names::NamesFiles;
use super::tables::requests::{self, LoadedRequest};
use super::tables::runs::{self, LoadedRun};
use super::tables::{records, removals, starts};
use crate::registry::records::{SamplerRecord, SavedCheckpoint, SessionRecord};

/// All that a data folder holds.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Counts the starts of servers on this folder.
    pub(crate) epoch: u64,
    pub(crate) sessions: Vec<SessionRecord>,
    pub(crate) runs: Vec<LoadedRun>,
    pub(crate) samplers: Vec<SamplerRecord>,
    pub(crate) checkpoints: Vec<SavedCheckpoint>,
    pub(crate) losses: Vec<(String, String)>,
    /// In the order in which they were accepted.
    pub(crate) requests: Vec<LoadedRequest>,
    /// What was to be removed, in the data folder, and may still be there.
    pub(crate) removals: Vec<PathBuf>,
}

impl Loaded {
    /// Whether there is no work of any client in it.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
            && self.runs.is_empty()
            && self.samplers.is_empty()
            && self.checkpoints.is_empty()
    }
}

/// Reads everything, and counts this start.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<Loaded> {
    let epoch = starts::count(connection)?;
    let loaded = read(connection)?;
    Ok(Loaded { epoch, ..loaded })
}

/// Reads everything, and refuses names that lead out of the data folder.
pub(super) fn read(connection: &Connection) -> rusqlite::Result<Loaded> {
    let loaded = Loaded {
        epoch: 0,
        sessions: records::SESSIONS.all(connection)?,
        runs: runs::all(connection)?,
        samplers: records::SAMPLERS.all(connection)?,
        checkpoints: records::CHECKPOINTS.all(connection)?,
        losses: records::LOSSES.all_texts(connection)?,
        requests: requests::all(connection)?,
        removals: removals::all(connection)?,
    };
    let checked = loaded.check_names();
    checked.map_err(|stray| Error::FromSqlConversionFailure(0, Type::Text, stray.into()))?;
    Ok(loaded)
}
