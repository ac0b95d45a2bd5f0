//! Reads what an earlier process left behind.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use jiff::Timestamp;
use rusqlite::{Connection, Row, types::Type};
use serde::de::DeserializeOwned;
use tinkrs_types::RequestId;

use super::change::Digest;
use super::files::{Files, remove};
use crate::auth::Owner;
use crate::outcome::OutcomeKind;
use crate::record::{RunRecord, SamplerRecord, SavedCheckpoint, SessionRecord};

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

#[derive(Debug)]
pub(crate) struct LoadedRun {
    pub(crate) record: RunRecord,
    pub(crate) last_request: Timestamp,
    pub(crate) next: i64,
    pub(crate) snapshot: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct LoadedRequest {
    pub(crate) id: RequestId,
    pub(crate) owner: Owner,
    pub(crate) kind: String,
    pub(crate) subject: String,
    pub(crate) number: Option<i64>,
    pub(crate) digest: Digest,
    pub(crate) seed: u64,
    pub(crate) has_body: bool,
    /// What its result is, if it has ended, and how large, if that is still kept.
    pub(crate) outcome: Option<(OutcomeKind, Option<u64>)>,
}

/// Reads everything, and counts this start.
pub(super) fn load(connection: &mut Connection) -> rusqlite::Result<Loaded> {
    let epoch: i64 = connection.query_row(
        "UPDATE starts SET epoch = epoch + 1 RETURNING epoch",
        [],
        |row| row.get(0),
    )?;
    Ok(Loaded {
        epoch: epoch.cast_unsigned(),
        sessions: records(connection, "SELECT record FROM sessions")?,
        runs: rows(
            connection,
            "SELECT record, last_request, next, snapshot FROM runs",
            |row| {
                Ok(LoadedRun {
                    record: record(row, 0)?,
                    last_request: time(row, 1)?,
                    next: row.get(2)?,
                    snapshot: row.get(3)?,
                })
            },
        )?,
        samplers: records(connection, "SELECT record FROM samplers")?,
        checkpoints: records(connection, "SELECT record FROM checkpoints")?,
        losses: rows(connection, "SELECT id, record FROM losses", |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?,
        requests: rows(
            connection,
            "SELECT id, owner, kind, subject, number, digest, seed, has_body, outcome, size
             FROM requests ORDER BY accepted, rowid",
            request,
        )?,
    })
}

fn request(row: &Row<'_>) -> rusqlite::Result<LoadedRequest> {
    let outcome: Option<String> = row.get(8)?;
    let size: Option<i64> = row.get(9)?;
    let kind = outcome.as_deref().and_then(OutcomeKind::from_name);
    Ok(LoadedRequest {
        id: RequestId::new(row.get::<_, String>(0)?),
        owner: owner(row, 1)?,
        kind: row.get(2)?,
        subject: row.get(3)?,
        number: row.get(4)?,
        digest: row.get(5)?,
        seed: row.get::<_, i64>(6)?.cast_unsigned(),
        has_body: row.get(7)?,
        outcome: kind.map(|kind| (kind, size.map(i64::cast_unsigned))),
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
        if let Some(number) = run.snapshot {
            known.insert(files.snapshot(&run.record.id, number));
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

fn records<T: DeserializeOwned>(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<T>> {
    rows(connection, sql, |row| record(row, 0))
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map([], read)?.collect()
}

pub(super) fn record<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })
}

fn owner(row: &Row<'_>, column: usize) -> rusqlite::Result<Owner> {
    let text: String = row.get(column)?;
    text.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })
}

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    Timestamp::from_millisecond(row.get(column)?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Integer, Box::new(error))
    })
}
