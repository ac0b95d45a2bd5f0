//! Rows of a damaged database that can still be read.
//!
//! Each table is read from its start to the first page that is damaged, and then from its end. The journal is
//! not taken over: a run that is repeated with an operation missing would silently become another one.

use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, params_from_iter};
use serde::de::DeserializeOwned;

use super::names::NamesFiles;
use crate::registry::records::{RunRecord, SamplerRecord, SavedCheckpoint, SessionRecord};

/// A table, what it is ordered by, and whether its records can be read.
struct Table {
    name: &'static str,
    key: &'static str,
    is_readable: Option<fn(&str) -> bool>,
}

const fn table(
    name: &'static str,
    key: &'static str,
    is_readable: Option<fn(&str) -> bool>,
) -> Table {
    Table {
        name,
        key,
        is_readable,
    }
}

const TABLES: [Table; 11] = [
    table("sessions", "rowid", Some(is_json::<SessionRecord>)),
    table("runs", "rowid", Some(is_json::<RunRecord>)),
    table("samplers", "rowid", Some(is_json::<SamplerRecord>)),
    table("checkpoints", "rowid", Some(is_json::<SavedCheckpoint>)),
    table("losses", "rowid", None),
    table("usage", "hour", None),
    table("audit", "rowid", None),
    table("spans", "number", None),
    table("progress", "run", None),
    table("series", "id", None),
    table("points", "series", None),
];

fn is_json<T: DeserializeOwned + NamesFiles>(text: &str) -> bool {
    serde_json::from_str::<T>(text).is_ok_and(|record| record.check_names().is_ok())
}

/// Takes over what can be read. Returns how many rows that were.
pub(super) fn take_rows(from: &Connection, on: &Transaction<'_>) -> rusqlite::Result<usize> {
    let mut taken = 0;
    for table in &TABLES {
        for order in ["ASC", "DESC"] {
            let (rows, is_all) = take_table(table, order, from, on)?;
            taken += rows;
            if is_all {
                break;
            }
        }
    }
    let epoch = from.query_row("SELECT max(epoch) FROM starts", [], |row| row.get(0));
    if let Ok(epoch @ 0i64..) = epoch {
        on.execute("UPDATE starts SET epoch = max(epoch, ?)", [epoch])?;
    }
    Ok(taken)
}

/// Takes over rows of a table to its end or to the first that cannot be read. Returns how many are new, and
/// whether that were all.
fn take_table(
    table: &Table,
    order: &str,
    from: &Connection,
    on: &Transaction<'_>,
) -> rusqlite::Result<(usize, bool)> {
    let Table {
        name,
        key,
        is_readable,
    } = table;
    // A view of this name is not ours, and may have rows without end.
    let is_table = "SELECT type = 'table' FROM sqlite_schema WHERE name = ?";
    if !from
        .query_row(is_table, [name], |row| row.get(0))
        .unwrap_or(false)
    {
        return Ok((0, true));
    }
    // The database may be of an older version.
    let there = columns(from, name).unwrap_or_default();
    let mut common = columns(on, name)?;
    common.retain(|column| there.contains(column));
    if *key == "rowid" {
        common.push("rowid".to_owned());
    }
    let record = common.iter().position(|column| column == "record");
    let (list, places) = (common.join(", "), vec!["?"; common.len()].join(", "));
    let select = format!("SELECT {list} FROM {name} ORDER BY {key} {order}");
    let insert = format!("INSERT OR IGNORE INTO {name} ({list}) VALUES ({places})");
    let Ok(mut rows) = from.prepare(&select) else {
        return Ok((0, false));
    };
    let Ok(mut rows) = rows.query([]) else {
        return Ok((0, false));
    };
    let mut taken = 0;
    loop {
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => return Ok((taken, true)),
            Err(_) => return Ok((taken, false)),
        };
        let values: Result<Vec<Value>, _> = (0..common.len()).map(|at| row.get(at)).collect();
        let Ok(values) = values else {
            continue;
        };
        let record = record.and_then(|at| values.get(at));
        let is_good = match (is_readable, record) {
            (Some(is_readable), Some(Value::Text(text))) => is_readable(text),
            (Some(_), _) => false,
            (None, _) => true,
        };
        // One that does not fit the table is as good as one that cannot be read.
        if is_good && let Ok(new) = on.execute(&insert, params_from_iter(values)) {
            taken += new;
        }
    }
}

fn columns(on: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut names = on.prepare("SELECT name FROM pragma_table_info(?)")?;
    names.query_map([table], |row| row.get(0))?.collect()
}
