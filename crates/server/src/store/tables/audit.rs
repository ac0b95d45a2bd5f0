//! The table of audit events.

use std::ops::Range;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, named_params};
use serde_json::{Map, Value};

use super::{list, time, to_json};
use crate::auth::Owner;
use crate::store::change::AuditEntry;

/// When an owner did what, with its details.
pub(crate) type AuditRow = (Timestamp, String, Map<String, Value>);

pub(in crate::store) fn insert(on: &Transaction<'_>, entry: &AuditEntry) -> rusqlite::Result<()> {
    on.prepare_cached(
        "INSERT INTO audit (time, owner, event, details) VALUES (:time, :owner, :event, :details)",
    )?
    .execute(named_params! {
        ":time": entry.time.as_millisecond(),
        ":owner": entry.owner.to_string(),
        ":event": entry.event,
        ":details": to_json(&entry.details),
    })?;
    Ok(())
}

/// Returns what an owner did between two times.
pub(in crate::store) fn of_owner(
    on: &Connection,
    owner: Owner,
    times: Range<Timestamp>,
) -> rusqlite::Result<Vec<AuditRow>> {
    let sql = "SELECT time, event, details FROM audit
               WHERE owner = :owner AND time >= :start AND time < :end ORDER BY time";
    let of_owner = named_params! {
        ":owner": owner.to_string(),
        ":start": times.start.as_millisecond(),
        ":end": times.end.as_millisecond(),
    };
    list(on, sql, of_owner, |row| {
        let details: String = row.get("details")?;
        let details = serde_json::from_str(&details).unwrap_or_default();
        Ok((time(row, "time")?, row.get("event")?, details))
    })
}
