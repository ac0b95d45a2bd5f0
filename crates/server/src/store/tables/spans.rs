//! The table of spans: when each operation was accepted, started and ended, for traces.

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, named_params};
use tinkrs_types::{RequestId, SessionId};

use super::list;
use crate::trace::Span;

/// How many spans are kept for traces.
const SPANS: i64 = 200_000;

/// Adds the span of a request that is in the journal with its outcome.
pub(in crate::store) fn insert(
    on: &Transaction<'_>,
    request: &RequestId,
    session: &SessionId,
    started: Timestamp,
    ended: Timestamp,
) -> rusqlite::Result<()> {
    on.prepare_cached(
        "INSERT INTO spans
             (session, request, kind, subject, seq_id, outcome, accepted, started, ended)
         SELECT :session, id, kind, subject, seq_id, outcome, accepted, :started, :ended
         FROM requests WHERE id = :request",
    )?
    .execute(named_params! {
        ":session": session.as_str(),
        ":started": started.as_millisecond(),
        ":ended": ended.as_millisecond(),
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
    list(on, sql, [session.as_str()], |row| {
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
    })
}
