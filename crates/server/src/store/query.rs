//! What is asked of the database while the server runs.

use jiff::Timestamp;
use rusqlite::params;
use serde_json::{Map, Value};
use tinkrs_types::TinkerPath;

use super::{AuditEntry, Store, UsageKind, load};
use crate::auth::Owner;
use crate::lock::lock;

/// What somebody used in an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsageRow {
    /// Since 1970.
    pub(crate) hour: i64,
    pub(crate) base_model: String,
    pub(crate) session: String,
    pub(crate) kind: UsageKind,
    pub(crate) tokens: u64,
}

/// When somebody did what, with its details.
pub(crate) type AuditRow = (Timestamp, String, Map<String, Value>);

impl Store {
    /// Lists what an owner used in these hours, by hour and then from much to little.
    pub(crate) fn usage(
        &self,
        owner: Owner,
        hours: std::ops::Range<i64>,
    ) -> rusqlite::Result<Vec<UsageRow>> {
        let reader = lock(&self.reader);
        let mut query = reader.prepare_cached(
            "SELECT hour, base_model, session, kind, amount FROM usage
             WHERE owner = ? AND hour >= ? AND hour < ? ORDER BY hour, amount DESC",
        )?;
        let rows = query.query_map(params![owner.to_string(), hours.start, hours.end], |row| {
            let kind: String = row.get(3)?;
            Ok(UsageRow {
                hour: row.get(0)?,
                base_model: row.get(1)?,
                session: row.get(2)?,
                kind: UsageKind::from_name(&kind).ok_or(rusqlite::Error::InvalidQuery)?,
                tokens: row.get::<_, i64>(4)?.cast_unsigned(),
            })
        })?;
        rows.collect()
    }

    /// Lists what an owner did between two times.
    pub(crate) fn audit(
        &self,
        owner: Owner,
        times: std::ops::Range<Timestamp>,
    ) -> rusqlite::Result<Vec<AuditRow>> {
        let reader = lock(&self.reader);
        let mut query = reader.prepare_cached(
            "SELECT time, event, details FROM audit
             WHERE owner = ? AND time >= ? AND time < ? ORDER BY time",
        )?;
        let (start, end) = (times.start.as_millisecond(), times.end.as_millisecond());
        let rows = query.query_map(params![owner.to_string(), start, end], |row| {
            let details: String = row.get(2)?;
            let details = serde_json::from_str(&details).unwrap_or_default();
            Ok((load::time(row, 0)?, row.get(1)?, details))
        })?;
        rows.collect()
    }

    /// Remembers what somebody did with a checkpoint.
    pub(crate) fn remember_checkpoint(&self, owner: Owner, event: &'static str, path: &TinkerPath) {
        let details = [
            ("tinker_path".to_owned(), path.to_string().into()),
            ("model_id".to_owned(), path.run().to_string().into()),
        ];
        self.remember(owner, event, details.into_iter().collect());
    }

    /// Remembers what somebody did.
    pub(crate) fn remember(&self, owner: Owner, event: &'static str, details: Map<String, Value>) {
        self.note(super::Change::Audit(AuditEntry {
            time: Timestamp::now(),
            owner,
            event,
            details,
        }));
    }
}
