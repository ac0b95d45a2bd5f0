//! The table of training runs.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params};
use tinkrs_types::{ModelId, RESUME_LABEL};

use super::{from_json, list, time, to_json};
use crate::registry::records::RunRecord;

/// A run as it is stored.
#[derive(Debug)]
pub(crate) struct LoadedRun {
    pub(crate) record: RunRecord,
    pub(crate) last_request: Timestamp,
    /// The sequence id that the run waits for.
    pub(crate) next: i64,
    /// The last sequence id that its snapshot includes.
    pub(crate) snapshot: Option<i64>,
    pub(crate) fallback: Fallback,
}

/// What a run goes on from if its snapshot is damaged: the journal is kept from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    Nothing,
    /// The first operation of the run.
    Creation,
    /// The snapshot before.
    Snapshot(i64),
}

impl Fallback {
    /// How the column says that the whole journal is kept.
    const CREATION: i64 = -1;

    fn from_column(column: Option<i64>) -> Self {
        match column {
            None => Self::Nothing,
            Some(Self::CREATION) => Self::Creation,
            Some(seq_id) => Self::Snapshot(seq_id),
        }
    }

    fn column(self) -> Option<i64> {
        match self {
            Self::Nothing => None,
            Self::Creation => Some(Self::CREATION),
            Self::Snapshot(seq_id) => Some(seq_id),
        }
    }

    /// Returns the last sequence id that the snapshot before includes.
    pub(crate) fn snapshot(self) -> Option<i64> {
        match self {
            Self::Snapshot(seq_id) => Some(seq_id),
            Self::Nothing | Self::Creation => None,
        }
    }
}

const SELECT: &str = "SELECT record, last_request, next, snapshot, fallback FROM runs";

fn read(row: &Row<'_>) -> rusqlite::Result<LoadedRun> {
    Ok(LoadedRun {
        record: from_json(row, "record")?,
        last_request: time(row, "last_request")?,
        next: row.get("next")?,
        snapshot: row.get("snapshot")?,
        fallback: Fallback::from_column(row.get("fallback")?),
    })
}

pub(in crate::store) fn all(on: &Connection) -> rusqlite::Result<Vec<LoadedRun>> {
    list(on, SELECT, [], read)
}

pub(in crate::store) fn find(on: &Connection, id: &ModelId) -> rusqlite::Result<Option<LoadedRun>> {
    let mut query = on.prepare_cached(&format!("{SELECT} WHERE id = ?"))?;
    query.query_row([id.as_str()], read).optional()
}

pub(in crate::store) fn of_owner(on: &Connection, owner: &str) -> rusqlite::Result<Vec<LoadedRun>> {
    let sql = format!("{SELECT} WHERE record ->> '$.owner' = ?");
    list(on, &sql, [owner], read)
}

/// Returns the runs that fulfil a condition, the one used last first. The last two parameters are the limit and the
/// offset, `?3` and `?4`.
pub(in crate::store) fn page(
    on: &Connection,
    condition: &str,
    parameters: (&str, &str, i64, i64),
) -> rusqlite::Result<Vec<LoadedRun>> {
    let sql = format!(
        "{SELECT} WHERE {condition} ORDER BY id = ?2 DESC, last_request DESC, id DESC LIMIT ?3 OFFSET ?4"
    );
    list(on, &sql, parameters, read)
}

/// Finds an owner's run by the name in its record.
pub(in crate::store) fn named(
    on: &Connection,
    owner: &str,
    name: &str,
) -> rusqlite::Result<Option<LoadedRun>> {
    let sql = format!("{SELECT} WHERE record ->> '$.owner' = ? AND record ->> '$.name' = ?");
    let mut query = on.prepare_cached(&sql)?;
    query.query_row([owner, name], read).optional()
}

/// Returns the ids of an owner's runs whose records have no name.
pub(in crate::store) fn unnamed(on: &Connection, owner: &str) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT id FROM runs WHERE record ->> '$.owner' = ? AND record ->> '$.name' IS NULL";
    list(on, sql, [owner], |row| row.get("id"))
}

/// Returns the ids of an owner's runs with this label `resume_id`.
pub(in crate::store) fn resuming(
    on: &Connection,
    owner: &str,
    resume_id: &str,
) -> rusqlite::Result<Vec<String>> {
    let sql = format!(
        "SELECT id FROM runs WHERE record ->> '$.owner' = ? AND record ->> '$.user_metadata.{RESUME_LABEL}' = ?"
    );
    list(on, &sql, [owner, resume_id], |row| row.get("id"))
}

pub(in crate::store) fn ids_in_session(
    on: &Connection,
    session: &str,
) -> rusqlite::Result<Vec<String>> {
    super::ids_in_session(on, "runs", session, "train")
}

/// Adds a run that waits for sequence id 0, its creation. One that is there stays as it is.
pub(in crate::store) fn insert(on: &Transaction<'_>, record: &RunRecord) -> rusqlite::Result<()> {
    on.prepare_cached(
        "INSERT OR IGNORE INTO runs (id, record, last_request, next)
         VALUES (:id, :record, :last_request, 0)",
    )?
    .execute(named_params! {
        ":id": record.id.as_str(),
        ":record": to_json(record),
        ":last_request": record.created_at.as_millisecond(),
    })?;
    Ok(())
}

pub(in crate::store) fn set_record(
    on: &Transaction<'_>,
    record: &RunRecord,
) -> rusqlite::Result<()> {
    on.prepare_cached("UPDATE runs SET record = :record WHERE id = :id")?
        .execute(named_params! {":record": to_json(record), ":id": record.id.as_str()})?;
    Ok(())
}

pub(in crate::store) fn set_last_request(
    on: &Transaction<'_>,
    id: &str,
    time: Timestamp,
) -> rusqlite::Result<()> {
    on.prepare_cached("UPDATE runs SET last_request = :time WHERE id = :id")?
        .execute(named_params! {":time": time.as_millisecond(), ":id": id})?;
    Ok(())
}

/// Notes that a run waits for this sequence id, unless it is further already.
pub(in crate::store) fn advance(
    on: &Transaction<'_>,
    id: &ModelId,
    next: i64,
) -> rusqlite::Result<()> {
    on.prepare_cached("UPDATE runs SET next = max(next, :next) WHERE id = :id")?
        .execute(named_params! {":next": next, ":id": id.as_str()})?;
    Ok(())
}

/// Returns the last sequence id that the snapshot of a run includes, and what it would go on from without.
pub(in crate::store) fn snapshots(
    on: &Transaction<'_>,
    id: &ModelId,
) -> rusqlite::Result<(Option<i64>, Fallback)> {
    on.prepare_cached("SELECT snapshot, fallback FROM runs WHERE id = ?")?
        .query_row([id.as_str()], |row| {
            let fallback = Fallback::from_column(row.get("fallback")?);
            Ok((row.get("snapshot")?, fallback))
        })
}

pub(in crate::store) fn set_snapshots(
    on: &Transaction<'_>,
    id: &ModelId,
    seq_id: Option<i64>,
    fallback: Fallback,
) -> rusqlite::Result<()> {
    on.prepare_cached("UPDATE runs SET snapshot = :seq_id, fallback = :fallback WHERE id = :id")?
        .execute(named_params! {
            ":seq_id": seq_id,
            ":fallback": fallback.column(),
            ":id": id.as_str(),
        })?;
    Ok(())
}
