//! The journal: the table of requests that were promised a result.

use jiff::Timestamp;
use rusqlite::{Connection, Row, Transaction, named_params};
use tinkrs_types::{ModelId, RequestId};

use super::{list, owner, time};
use crate::auth::Owner;
use crate::registry::Promised;
use crate::results::{OperationResult, ResultFormat};
use crate::store::change::{Digest, NewRequest};

/// A request as it is stored.
#[derive(Debug)]
pub(crate) struct LoadedRequest {
    pub(crate) id: RequestId,
    pub(crate) owner: Owner,
    pub(crate) kind: String,
    /// The run, sampler or session that it belongs to.
    pub(crate) subject: String,
    pub(crate) seq_id: Option<i64>,
    pub(crate) digest: Digest,
    pub(crate) seed: u64,
    pub(crate) accepted: Timestamp,
    pub(crate) has_body: bool,
    /// What its result is, if it has ended, and how large, if that is still kept.
    pub(crate) outcome: Option<(ResultFormat, Option<u64>)>,
}

pub(in crate::store) fn insert(
    on: &Transaction<'_>,
    request: &NewRequest,
    has_body: bool,
) -> rusqlite::Result<()> {
    on.prepare_cached(
        "INSERT INTO requests (id, owner, kind, subject, seq_id, digest, seed, accepted, has_body)
         VALUES (:id, :owner, :kind, :subject, :seq_id, :digest, :seed, :accepted, :has_body)",
    )?
    .execute(named_params! {
        ":id": request.id.as_str(),
        ":owner": request.owner.to_string(),
        ":kind": request.kind,
        ":subject": request.subject,
        ":seq_id": request.seq_id,
        ":digest": request.digest,
        ":seed": request.seed.cast_signed(),
        ":accepted": request.accepted.as_millisecond(),
        ":has_body": has_body,
    })?;
    Ok(())
}

/// Returns all requests, in the order in which they were accepted.
pub(in crate::store) fn all(on: &Connection) -> rusqlite::Result<Vec<LoadedRequest>> {
    let sql =
        "SELECT id, owner, kind, subject, seq_id, digest, seed, accepted, has_body, outcome, size
               FROM requests ORDER BY accepted, rowid";
    list(on, sql, [], read)
}

fn read(row: &Row<'_>) -> rusqlite::Result<LoadedRequest> {
    let outcome: Option<String> = row.get("outcome")?;
    let size: Option<i64> = row.get("size")?;
    let kind = outcome.as_deref().and_then(ResultFormat::from_name);
    Ok(LoadedRequest {
        id: id(row)?,
        owner: owner(row)?,
        kind: row.get("kind")?,
        subject: row.get("subject")?,
        seq_id: row.get("seq_id")?,
        digest: row.get("digest")?,
        seed: row.get::<_, i64>("seed")?.cast_unsigned(),
        accepted: time(row, "accepted")?,
        has_body: row.get("has_body")?,
        outcome: kind.map(|kind| (kind, size.map(i64::cast_unsigned))),
    })
}

/// Returns the requests of a run that are still known, by their sequence ids.
pub(in crate::store) fn promised(
    on: &Connection,
    run: &ModelId,
) -> rusqlite::Result<Vec<(i64, Promised)>> {
    let sql = "SELECT seq_id, id, digest FROM requests WHERE subject = ? AND seq_id NOT NULL";
    list(on, sql, [run.as_str()], |row| {
        let (id, digest) = (id(row)?, row.get("digest")?);
        Ok((row.get("seq_id")?, Promised { id, digest }))
    })
}

fn id(row: &Row<'_>) -> rusqlite::Result<RequestId> {
    row.get::<_, String>("id").map(RequestId::new)
}

/// Notes what the result of a request is.
pub(in crate::store) fn set_outcome(
    on: &Transaction<'_>,
    id: &RequestId,
    outcome: &OperationResult,
) -> rusqlite::Result<()> {
    let size = outcome.bytes.len() as u64;
    on.prepare_cached("UPDATE requests SET outcome = :outcome, size = :size WHERE id = :id")?
        .execute(named_params! {
            ":outcome": outcome.kind.name(),
            ":size": size.cast_signed(),
            ":id": id.as_str(),
        })?;
    Ok(())
}

/// Notes that the body of a request is not kept any longer.
pub(in crate::store) fn drop_body(on: &Transaction<'_>, id: &RequestId) -> rusqlite::Result<()> {
    on.prepare_cached("UPDATE requests SET has_body = 0 WHERE id = ?")?
        .execute([id.as_str()])?;
    Ok(())
}

/// Notes that the result of a request is not kept any longer. The operation of a run stays in the
/// journal without it until a snapshot includes it, because a restart repeats it. Returns whether
/// the request is gone.
pub(in crate::store) fn drop_result(
    on: &Transaction<'_>,
    id: &RequestId,
) -> rusqlite::Result<bool> {
    let kept = on
        .prepare_cached(
            "UPDATE requests SET size = NULL
             WHERE id = ? AND has_body = 1 AND outcome IS NOT 'failed' AND EXISTS (
                 SELECT 1 FROM runs
                 WHERE runs.id = requests.subject AND runs.record ->> '$.closed' IS NULL
             )",
        )?
        .execute([id.as_str()])?;
    if kept == 0 {
        on.prepare_cached("DELETE FROM requests WHERE id = ?")?
            .execute([id.as_str()])?;
    }
    Ok(kept == 0)
}

/// Drops the bodies of a run's ended operations up to a sequence id, and with them those operations
/// whose results are not kept any longer. Returns the requests whose bodies were dropped.
pub(in crate::store) fn drop_bodies(
    on: &Transaction<'_>,
    run: &ModelId,
    up_to: i64,
) -> rusqlite::Result<Vec<RequestId>> {
    let of_run = named_params! {":run": run.as_str(), ":up_to": up_to};
    let sql = "UPDATE requests SET has_body = 0
               WHERE subject = :run AND seq_id <= :up_to AND has_body = 1 AND outcome NOT NULL
               RETURNING id";
    let dropped = list(on, sql, of_run, id)?;
    on.prepare_cached(
        "DELETE FROM requests
         WHERE subject = :run AND seq_id <= :up_to AND has_body = 0 AND outcome NOT NULL
         AND size IS NULL",
    )?
    .execute(of_run)?;
    Ok(dropped)
}
