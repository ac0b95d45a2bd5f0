//! Reads what an earlier process left behind.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;

use super::files::{Files, remove};
use super::tables::requests::{self, LoadedRequest};
use super::tables::runs::{self, LoadedRun};
use super::tables::{records, starts};
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
}

/// Reads everything, and counts this start.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<Loaded> {
    Ok(Loaded {
        epoch: starts::count(connection)?,
        sessions: records::SESSIONS.all(connection)?,
        runs: runs::all(connection)?,
        samplers: records::SAMPLERS.all(connection)?,
        checkpoints: records::CHECKPOINTS.all(connection)?,
        losses: records::LOSSES.all_texts(connection)?,
        requests: requests::all(connection)?,
    })
}

/// Removes the files that belong to nothing: they were written just before the process ended, and
/// what they were for was never committed.
pub(super) fn remove_orphans(files: &Files, loaded: &Loaded) {
    let mut known = HashSet::new();
    for request in &loaded.requests {
        if request.has_body {
            known.insert(files.body(&request.id));
        }
        if let Some((_, Some(_))) = request.outcome {
            known.insert(files.result(&request.id));
        }
    }
    for run in &loaded.runs {
        if let Some(seq_id) = run.snapshot {
            known.insert(files.snapshot(&run.record.id, seq_id));
        }
    }
    let root = files.root();
    let folders = loaded.samplers.iter().filter_map(|s| s.own_folder());
    known.extend(folders.map(|folder| root.join(folder)));
    known.extend(loaded.checkpoints.iter().map(|c| root.join(&c.folder)));
    for (folder, depth) in [
        ("bodies", 1),
        ("results", 1),
        ("samplers", 1),
        ("snapshots", 2),
        ("checkpoints", 3),
    ] {
        sweep(root.join(folder), depth, &known);
    }
}

/// Removes what lies `depth` levels below a folder and is not known, and folders left empty.
fn sweep(folder: PathBuf, depth: u32, known: &HashSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(&folder) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if depth > 1 && path.is_dir() {
            sweep(path.clone(), depth - 1, known);
            // Refused by the system unless the folder is empty.
            let _ = fs::remove_dir(&path);
        } else if !known.contains(&path) {
            remove(&path);
        }
    }
}
