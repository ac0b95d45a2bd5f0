//! The tables: one file for each, with everything that is written to it and read from it.
//!
//! Columns are named wherever they are written or read, so a new one is a step in
//! [`schema`](super::schema), a line or two in its table's file, and what is to be stored there.

pub(super) mod audit;
pub(crate) mod metrics;
pub(super) mod payloads;
pub(super) mod records;
pub(super) mod removals;
pub(super) mod requests;
pub(super) mod runs;
pub(crate) mod spans;
pub(super) mod starts;
pub(super) mod usage;

use jiff::Timestamp;
use rusqlite::{Connection, Params, Row, types::Type};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::auth::Owner;

/// Returns all rows of a query.
pub(super) fn list<T>(
    on: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    on.prepare_cached(sql)?
        .query_map(parameters, read)?
        .collect()
}

fn to_json(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("records have text keys")
}

fn from_json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| malformed(row, column, Type::Text, error))
}

fn owner(row: &Row<'_>) -> rusqlite::Result<Owner> {
    let text: String = row.get("owner")?;
    text.parse()
        .map_err(|error| malformed(row, "owner", Type::Text, error))
}

fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    Timestamp::from_millisecond(row.get(column)?)
        .map_err(|error| malformed(row, column, Type::Integer, error))
}

fn malformed(
    row: &Row<'_>,
    column: &str,
    kind: Type,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    let index = row.as_ref().column_index(column).unwrap_or_default();
    rusqlite::Error::FromSqlConversionFailure(index, kind, Box::new(error))
}

/// Returns the ids in a table that begin with a session's and this word: `session:word:`.
fn ids_in_session(
    on: &Connection,
    table: &str,
    session: &str,
    word: &str,
) -> rusqlite::Result<Vec<String>> {
    let sql = format!("SELECT id FROM {table} WHERE id >= ? AND id < ?");
    // `;` comes right after `:`.
    let (first, end) = (format!("{session}:{word}:"), format!("{session}:{word};"));
    list(on, &sql, [first, end], |row| row.get("id"))
}
