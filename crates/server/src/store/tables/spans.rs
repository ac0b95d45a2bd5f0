//! The table of spans: when each operation was accepted, started and ended, for traces.

use jiff::Timestamp;
use rusqlite::{Connection, Row, Transaction, named_params};
use tinkrs_types::{RequestId, SessionId};

use super::list;
use crate::studio::waits::Waits;
use crate::trace::Span;

/// How many spans are kept for traces.
const SPANS: i64 = 200_000;

/// An operation of a run that has ended, with its number among all spans.
#[derive(Clone, Debug)]
pub(crate) struct RunSpan {
    pub(crate) number: i64,
    pub(crate) span: Span,
    pub(crate) waits: Waits,
    pub(crate) busy_ms: Option<u64>,
}

/// When a request was worked on.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Times {
    pub(in crate::store) started: Timestamp,
    pub(in crate::store) ended: Timestamp,
    pub(in crate::store) waits: Waits,
    pub(in crate::store) busy_ms: Option<u64>,
}

/// Adds the span of a request that is in the journal with its outcome.
pub(in crate::store) fn insert(
    on: &Transaction<'_>,
    request: &RequestId,
    session: &SessionId,
    times: Times,
) -> rusqlite::Result<()> {
    on.prepare_cached(
        "INSERT INTO spans
             (session, request, kind, subject, seq_id, outcome, accepted, started, ended, waits, busy)
         SELECT :session, id, kind, subject, seq_id, outcome, accepted, :started, :ended, :waits, :busy
         FROM requests WHERE id = :request",
    )?
    .execute(named_params! {
        ":session": session.as_str(),
        ":started": times.started.as_millisecond(),
        ":ended": times.ended.as_millisecond(),
        ":waits": times.waits.to_text(),
        ":busy": times.busy_ms.map(u64::cast_signed),
        ":request": request.as_str(),
    })?;
    // For each new one the oldest is dropped: the newest of all sessions together are kept.
    on.prepare_cached("DELETE FROM spans WHERE number <= ?")?
        .execute([on.last_insert_rowid() - SPANS])?;
    Ok(())
}

/// Returns the spans of a session, by the time of acceptance.
pub(in crate::store) fn of_session(
    on: &Connection,
    session: &SessionId,
) -> rusqlite::Result<Vec<Span>> {
    let sql = "SELECT request, kind, subject, seq_id, outcome, accepted, started, ended
               FROM spans WHERE session = ? ORDER BY accepted, number";
    list(on, sql, [session.as_str()], read)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Span> {
    let (accepted, ended): (i64, i64) = (row.get("accepted")?, row.get("ended")?);
    // The clock may have been set meanwhile.
    let ended = ended.max(accepted);
    Ok(Span {
        request: row.get("request")?,
        kind: row.get("kind")?,
        subject: row.get("subject")?,
        seq_id: row.get("seq_id")?,
        outcome: row.get("outcome")?,
        accepted,
        started: row.get::<_, i64>("started")?.clamp(accepted, ended),
        ended,
    })
}

const SELECT: &str =
    "SELECT number, request, kind, subject, seq_id, outcome, accepted, started, ended, waits, busy
    FROM spans WHERE subject = ?1";

fn read_of_run(row: &Row<'_>) -> rusqlite::Result<RunSpan> {
    let waits: Option<String> = row.get("waits")?;
    Ok(RunSpan {
        number: row.get("number")?,
        span: read(row)?,
        waits: waits.as_deref().map(Waits::from_text).unwrap_or_default(),
        busy_ms: row.get::<_, Option<i64>>("busy")?.map(i64::cast_unsigned),
    })
}

/// Returns the operations of a run that ended before the one of this number, the latest first.
pub(in crate::store) fn of_run_before(
    on: &Connection,
    run: &str,
    before: i64,
    most: usize,
) -> rusqlite::Result<Vec<RunSpan>> {
    let sql = format!("{SELECT} AND number < ?2 ORDER BY number DESC LIMIT ?3");
    list(on, &sql, (run, before, most as i64), read_of_run)
}

/// Returns the operations of a run that ended after the one of a number, up to that of another, the earliest first.
pub(in crate::store) fn of_run_between(
    on: &Connection,
    run: &str,
    (since, until): (i64, i64),
    most: usize,
) -> rusqlite::Result<Vec<RunSpan>> {
    let sql = format!("{SELECT} AND number > ?2 AND number <= ?3 ORDER BY number LIMIT ?4");
    list(on, &sql, (run, since, until, most as i64), read_of_run)
}

/// Returns the number of the newest span.
pub(in crate::store) fn newest(on: &Connection) -> rusqlite::Result<i64> {
    on.prepare_cached("SELECT coalesce(max(number), 0) FROM spans")?
        .query_row([], |row| row.get(0))
}
