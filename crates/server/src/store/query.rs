//! What is asked of the database while the server runs.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tinkrs_types::{ModelId, RequestId, SamplingSessionId, SessionId, TinkerPath};

use super::{AuditEntry, Store, UsageKind, load};
use crate::auth::Owner;
use crate::lock::lock;
use crate::record::{RunRecord, SamplerRecord, SessionRecord};
use crate::registry::Promised;
use crate::trace::Span;

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

/// A run that is not in memory.
#[derive(Debug)]
pub(crate) struct StoredRun {
    pub(crate) record: RunRecord,
    pub(crate) last_request: Timestamp,
    pub(crate) next: i64,
    /// The requests that are still known, by their numbers.
    pub(crate) requests: Vec<(i64, Promised)>,
}

/// When somebody did what, with its details.
pub(crate) type AuditRow = (Timestamp, String, Map<String, Value>);

impl Store {
    /// Finds a session.
    pub(crate) fn session(&self, id: &SessionId) -> rusqlite::Result<Option<SessionRecord>> {
        let sql = "SELECT record FROM sessions WHERE id = ?";
        one(&lock(&self.reader), sql, id.as_str())
    }

    /// Finds a sampling session.
    pub(crate) fn sampler(
        &self,
        id: &SamplingSessionId,
    ) -> rusqlite::Result<Option<SamplerRecord>> {
        let sql = "SELECT record FROM samplers WHERE id = ?";
        one(&lock(&self.reader), sql, id.as_str())
    }

    /// Finds a run, with the requests that are still known.
    pub(crate) fn run(&self, id: &ModelId) -> rusqlite::Result<Option<StoredRun>> {
        let reader = lock(&self.reader);
        let sql = "SELECT record, last_request, next FROM runs WHERE id = ?";
        let found = reader.prepare_cached(sql)?.query_row([id.as_str()], run);
        let Some(mut found) = found.optional()? else {
            return Ok(None);
        };
        let sql = "SELECT number, id, digest FROM requests WHERE subject = ? AND number NOT NULL";
        found.requests = list(&reader, sql, [id.as_str()], |row| {
            let id = RequestId::new(row.get::<_, String>(1)?);
            let digest = row.get(2)?;
            Ok((row.get(0)?, Promised { id, digest }))
        })?;
        Ok(Some(found))
    }

    /// Lists an owner's sessions.
    pub(crate) fn sessions_of(&self, owner: Owner) -> rusqlite::Result<Vec<SessionRecord>> {
        let sql = "SELECT record FROM sessions WHERE record ->> '$.owner' = ?";
        list(&lock(&self.reader), sql, [owner.to_string()], |row| {
            load::record(row, 0)
        })
    }

    /// Lists an owner's runs, without their requests.
    pub(crate) fn runs_of(&self, owner: Owner) -> rusqlite::Result<Vec<StoredRun>> {
        let sql = "SELECT record, last_request, next FROM runs WHERE record ->> '$.owner' = ?";
        list(&lock(&self.reader), sql, [owner.to_string()], run)
    }

    /// Lists the runs and the sampling sessions of a session: their ids begin with the session's.
    pub(crate) fn members_of(
        &self,
        session: &SessionId,
    ) -> rusqlite::Result<(Vec<ModelId>, Vec<SamplingSessionId>)> {
        let reader = lock(&self.reader);
        let ids = |table: &str, kind: &str| {
            let sql = format!("SELECT id FROM {table} WHERE id >= ? AND id < ?");
            // `;` comes right after `:`.
            let (first, end) = (format!("{session}:{kind}:"), format!("{session}:{kind};"));
            list(&reader, &sql, [first, end], |row| row.get::<_, String>(0))
        };
        let runs = ids("runs", "train")?.into_iter().map(ModelId::new);
        let samplers = ids("samplers", "sample")?;
        let samplers = samplers.into_iter().map(SamplingSessionId::new);
        Ok((runs.collect(), samplers.collect()))
    }

    /// Lists what was done for a session, by the time of acceptance.
    pub(crate) fn spans(&self, session: &SessionId) -> rusqlite::Result<Vec<Span>> {
        let sql = "SELECT request, kind, subject, place, outcome, accepted, started, ended
                   FROM spans WHERE session = ? ORDER BY accepted, number";
        list(&lock(&self.reader), sql, [session.as_str()], |row| {
            let (accepted, ended): (i64, i64) = (row.get(5)?, row.get(7)?);
            // The clock may have been set meanwhile.
            let ended = ended.max(accepted);
            Ok(Span {
                request: row.get(0)?,
                kind: row.get(1)?,
                subject: row.get(2)?,
                number: row.get(3)?,
                outcome: row.get(4)?,
                accepted,
                started: row.get::<_, i64>(6)?.clamp(accepted, ended),
                ended,
            })
        })
    }

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

    /// Remembers what somebody did. Where that cannot be written, it is not kept: reading goes on
    /// while the disk is full, and may go on for long.
    pub(crate) fn remember(&self, owner: Owner, event: &'static str, details: Map<String, Value>) {
        let entry = AuditEntry {
            time: Timestamp::now(),
            owner,
            event,
            details,
        };
        self.send(super::Change::Audit(entry), move |written| {
            if let Err(error) = written {
                tracing::error!(%error, event, "lost a line of the audit log");
            }
        });
    }
}

fn run(row: &Row<'_>) -> rusqlite::Result<StoredRun> {
    Ok(StoredRun {
        record: load::record(row, 0)?,
        last_request: load::time(row, 1)?,
        next: row.get(2)?,
        requests: Vec::new(),
    })
}

fn one<T: DeserializeOwned>(
    reader: &Connection,
    sql: &str,
    id: &str,
) -> rusqlite::Result<Option<T>> {
    let mut query = reader.prepare_cached(sql)?;
    let found = query.query_row([id], |row| load::record(row, 0));
    found.optional()
}

fn list<T>(
    reader: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    let mut query = reader.prepare_cached(sql)?;
    query.query_map(parameters, read)?.collect()
}
