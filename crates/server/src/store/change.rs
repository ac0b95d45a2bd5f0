//! Everything that can change in the data folder.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{ErrorCode, Transaction, params};
use serde::Serialize;
use serde_json::{Map, Value};
use tinkrs_types::{ModelId, RequestId, SamplingSessionId, SessionId, TinkerPath};

use super::files::Files;
use crate::auth::Owner;
use crate::outcome::Outcome;
use crate::record::{RunRecord, SamplerRecord, SavedCheckpoint, SessionRecord};

/// One change. Those of a batch are committed together.
#[derive(Debug)]
pub(crate) enum Change {
    /// Nothing; it is durable when all that was sent before it is.
    Nothing,
    /// Several things become true at the same moment.
    Together(Vec<Self>),
    /// A session is as described.
    Session(SessionRecord),
    /// A run is as described. A new one waits for number 0, its creation.
    Run { record: RunRecord, is_new: bool },
    /// A run's weights, journal and snapshots are not needed any more.
    RunClosed(RunRecord),
    /// A run has given up on the numbers before this one.
    Abandoned { run: ModelId, next: i64 },
    /// A run's state after an operation is in a file.
    Snapshot { run: ModelId, number: i64 },
    /// A sampling session is as described.
    Sampler(SamplerRecord),
    /// A sampling session and its own folder are gone.
    SamplerGone(SamplingSessionId),
    /// A checkpoint is as described; the folder that it had before is not needed any more.
    Checkpoint {
        saved: SavedCheckpoint,
        replaced: Option<PathBuf>,
    },
    /// A checkpoint is gone, and its folder if nobody shares it.
    CheckpointGone {
        path: TinkerPath,
        folder: Option<PathBuf>,
    },
    /// A loss is not needed any more.
    LossGone(String),
    /// A loss is known.
    Loss { id: String, record: String },
    /// A request was accepted.
    Request(Box<NewRequest>),
    /// A request has ended.
    Ended { id: RequestId, ending: Box<Ending> },
    /// Results are not kept any longer, though what a run did may still have to be repeated.
    ResultsGone(Vec<RequestId>),
    /// Somebody did something that is worth remembering.
    Audit(AuditEntry),
}

/// A request that is promised a result.
#[derive(Debug)]
pub(crate) struct NewRequest {
    pub(crate) id: RequestId,
    pub(crate) owner: Owner,
    pub(crate) kind: &'static str,
    /// The run, sampler or session that it belongs to.
    pub(crate) subject: String,
    pub(crate) number: Option<i64>,
    pub(crate) digest: Digest,
    /// What it has to draw by chance is drawn from this.
    pub(crate) seed: u64,
    pub(crate) accepted: Timestamp,
    pub(crate) body: Bytes,
    /// The failure of a request that cannot run.
    pub(crate) outcome: Option<Outcome>,
    /// What comes into being with it.
    pub(crate) also: Vec<Change>,
}

/// The SHA-256 of a body.
pub(crate) type Digest = [u8; 32];

/// How a request ended, with all that has to become true at the same moment.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    /// The run that it was an operation of, and the operation's number.
    pub(crate) of_run: Option<(ModelId, i64)>,
    /// Whether the run's snapshot was taken right after it.
    pub(crate) with_snapshot: bool,
    /// What else comes into being.
    pub(crate) also: Vec<Change>,
    pub(crate) usage: Vec<Usage>,
    /// The session that it was done for, and since when.
    pub(crate) begun: Option<(SessionId, Timestamp)>,
}

impl From<Outcome> for Ending {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            of_run: None,
            with_snapshot: false,
            also: Vec::new(),
            usage: Vec::new(),
            begun: None,
        }
    }
}

/// What an operation used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) owner: Owner,
    pub(crate) base_model: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) kind: UsageKind,
    pub(crate) tokens: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageKind {
    Training,
    Prefill,
    CachedPrefill,
    Sampling,
}

impl UsageKind {
    pub(crate) const ALL: [Self; 4] = [
        Self::Training,
        Self::Prefill,
        Self::CachedPrefill,
        Self::Sampling,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Prefill => "prefill",
            Self::CachedPrefill => "cached_prefill",
            Self::Sampling => "sampling",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something that somebody did.
#[derive(Clone, Debug)]
pub(crate) struct AuditEntry {
    pub(crate) time: Timestamp,
    pub(crate) owner: Owner,
    /// `{resource}_{action}`.
    pub(crate) event: &'static str,
    pub(crate) details: Map<String, Value>,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error("could not write the database")]
    Database(#[from] rusqlite::Error),
    #[error("could not write {}", .1.display())]
    File(#[source] io::Error, PathBuf),
}

impl ApplyError {
    /// Whether the same change may be made later: the disk refused it.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::File(..) => true,
            Self::Database(error) => matches!(
                error.sqlite_error_code(),
                Some(
                    ErrorCode::DiskFull
                        | ErrorCode::SystemIoFailure
                        | ErrorCode::CannotOpen
                        | ErrorCode::ReadOnly
                        | ErrorCode::PermissionDenied
                        | ErrorCode::DatabaseBusy
                        | ErrorCode::DatabaseLocked
                        | ErrorCode::OutOfMemory
                )
            ),
        }
    }
}

/// How many spans are kept for traces.
const SPANS: i64 = 200_000;

/// Makes a change inside a transaction. Files that are not needed after its commit go to `unneeded`.
pub(super) fn apply(
    change: &Change,
    on: &Transaction<'_>,
    files: &Files,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    match change {
        Change::Nothing => {}
        Change::Together(changes) => {
            for change in changes {
                apply(change, on, files, unneeded)?;
            }
        }
        Change::Session(record) => put(on, "sessions", "id", record.id.as_str(), record)?,
        Change::Run { record, is_new } => {
            if *is_new {
                let now = record.created_at.as_millisecond();
                on.prepare_cached(
                    "INSERT OR IGNORE INTO runs (id, record, last_request, next) VALUES (?, ?, ?, 0)",
                )?
                .execute(params![record.id.as_str(), text(record), now])?;
            }
            on.prepare_cached("UPDATE runs SET record = ? WHERE id = ?")?
                .execute(params![text(record), record.id.as_str()])?;
        }
        Change::RunClosed(record) => {
            on.prepare_cached("UPDATE runs SET record = ?, snapshot = NULL WHERE id = ?")?
                .execute(params![text(record), record.id.as_str()])?;
            drop_bodies(on, files, record.id.as_str(), i64::MAX, unneeded)?;
            unneeded.push(files.snapshots(&record.id));
        }
        Change::Abandoned { run, next } => {
            on.prepare_cached("UPDATE runs SET next = max(next, ?) WHERE id = ?")?
                .execute(params![next, run.as_str()])?;
        }
        Change::Snapshot { run, number } => snapshot(on, files, run, *number, unneeded)?,
        Change::Sampler(record) => put(on, "samplers", "id", record.id.as_str(), record)?,
        Change::SamplerGone(id) => {
            on.prepare_cached("DELETE FROM samplers WHERE id = ?")?
                .execute([id.as_str()])?;
        }
        Change::Checkpoint { saved, replaced } => {
            let path = saved.path().to_string();
            put(on, "checkpoints", "path", &path, saved)?;
            unneeded.extend(replaced.iter().map(|folder| files.root().join(folder)));
        }
        Change::CheckpointGone { path, folder } => {
            on.prepare_cached("DELETE FROM checkpoints WHERE path = ?")?
                .execute([path.to_string()])?;
            unneeded.extend(folder.iter().map(|folder| files.root().join(folder)));
        }
        Change::Loss { id, record } => {
            on.prepare_cached("INSERT OR REPLACE INTO losses VALUES (?, ?)")?
                .execute(params![id, record])?;
        }
        Change::LossGone(id) => {
            on.prepare_cached("DELETE FROM losses WHERE id = ?")?
                .execute([id])?;
        }
        Change::Request(request) => accept(request, on, files, unneeded)?,
        Change::Ended { id, ending } => end(id, ending, on, files, unneeded)?,
        Change::ResultsGone(ids) => {
            for id in ids {
                drop_result(on, files, id, unneeded)?;
            }
        }
        Change::Audit(entry) => {
            on.prepare_cached("INSERT INTO audit VALUES (?, ?, ?, ?)")?
                .execute(params![
                    entry.time.as_millisecond(),
                    entry.owner.to_string(),
                    entry.event,
                    text(&entry.details)
                ])?;
        }
    }
    Ok(())
}

fn accept(
    request: &NewRequest,
    on: &Transaction<'_>,
    files: &Files,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    for change in &request.also {
        apply(change, on, files, unneeded)?;
    }
    let waits = request.outcome.is_none();
    if waits {
        write_file(files, files.body(&request.id), &request.body)?;
    }
    on.prepare_cached("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)")?
        .execute(params![
            request.id.as_str(),
            request.owner.to_string(),
            request.kind,
            request.subject,
            request.number,
            request.digest,
            request.seed.cast_signed(),
            request.accepted.as_millisecond(),
            waits,
        ])?;
    if let Some(outcome) = &request.outcome {
        store_outcome(&request.id, outcome, on, files)?;
    }
    on.prepare_cached("UPDATE runs SET last_request = ? WHERE id = ?")?
        .execute(params![request.accepted.as_millisecond(), request.subject])?;
    Ok(())
}

fn end(
    id: &RequestId,
    ending: &Ending,
    on: &Transaction<'_>,
    files: &Files,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    store_outcome(id, &ending.outcome, on, files)?;
    for change in &ending.also {
        apply(change, on, files, unneeded)?;
    }
    match &ending.of_run {
        Some((run, number)) => {
            on.prepare_cached("UPDATE runs SET next = max(next, ?) WHERE id = ?")?
                .execute(params![number.saturating_add(1), run.as_str()])?;
            if ending.with_snapshot {
                snapshot(on, files, run, *number, unneeded)?;
            }
        }
        // Only a run's operations are ever repeated after they have ended.
        None => {
            on.prepare_cached("UPDATE requests SET has_body = 0 WHERE id = ?")?
                .execute([id.as_str()])?;
            unneeded.push(files.body(id));
        }
    }
    let now = Timestamp::now();
    if let Some((session, started)) = &ending.begun {
        on.prepare_cached(
            "INSERT INTO spans
             SELECT NULL, ?, id, kind, subject, number, outcome, accepted, ?, ?
             FROM requests WHERE id = ?",
        )?
        .execute(params![
            session.as_str(),
            started.as_millisecond(),
            now.as_millisecond(),
            id.as_str()
        ])?;
        // One comes, one goes: the newest ones of all sessions together are kept.
        on.prepare_cached("DELETE FROM spans WHERE number <= ?")?
            .execute([on.last_insert_rowid() - SPANS])?;
    }
    let hour = now.as_second() / 3600;
    let mut add = on.prepare_cached(
        "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
    )?;
    for usage in &ending.usage {
        add.execute(params![
            hour,
            usage.owner.to_string(),
            usage.base_model,
            usage.session.as_ref().map_or("", SessionId::as_str),
            usage.kind.name(),
            usage.tokens.cast_signed(),
        ])?;
    }
    Ok(())
}

fn store_outcome(
    id: &RequestId,
    outcome: &Outcome,
    on: &Transaction<'_>,
    files: &Files,
) -> Result<(), ApplyError> {
    write_file(files, files.result(id), &outcome.bytes)?;
    let size = outcome.bytes.len() as u64;
    on.prepare_cached("UPDATE requests SET outcome = ?, size = ? WHERE id = ?")?
        .execute(params![
            outcome.kind.name(),
            size.cast_signed(),
            id.as_str()
        ])?;
    Ok(())
}

/// Notes a snapshot, and forgets what it replaces: the one before it, and the bodies of the
/// operations that it has seen.
fn snapshot(
    on: &Transaction<'_>,
    files: &Files,
    run: &ModelId,
    number: i64,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    let old: Option<i64> = on
        .prepare_cached("SELECT snapshot FROM runs WHERE id = ?")?
        .query_row([run.as_str()], |row| row.get(0))?;
    if old.is_some_and(|old| old > number) {
        // It took longer to write than one that was begun later.
        unneeded.push(files.snapshot(run, number));
        return Ok(());
    }
    if let Some(old) = old.filter(|old| *old != number) {
        unneeded.push(files.snapshot(run, old));
    }
    on.prepare_cached("UPDATE runs SET snapshot = ? WHERE id = ?")?
        .execute(params![number, run.as_str()])?;
    drop_bodies(on, files, run.as_str(), number, unneeded)
}

/// Drops a result. The operation of a run stays in the journal without it until a snapshot has seen
/// it: a restart repeats it.
fn drop_result(
    on: &Transaction<'_>,
    files: &Files,
    id: &RequestId,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    unneeded.push(files.result(id));
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
        unneeded.push(files.body(id));
    }
    Ok(())
}

/// Drops the bodies of a run's ended operations up to a number, and with them those operations
/// whose results are not kept any longer.
fn drop_bodies(
    on: &Transaction<'_>,
    files: &Files,
    run: &str,
    number: i64,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    let mut query = on.prepare_cached(
        "UPDATE requests SET has_body = 0
         WHERE subject = ? AND number <= ? AND has_body = 1 AND outcome IS NOT NULL RETURNING id",
    )?;
    let ids = query.query_map(params![run, number], |row| row.get::<_, String>(0))?;
    for id in ids {
        unneeded.push(files.body(&RequestId::new(id?)));
    }
    on.prepare_cached(
        "DELETE FROM requests
         WHERE subject = ? AND number <= ? AND has_body = 0 AND outcome NOT NULL AND size IS NULL",
    )?
    .execute(params![run, number])?;
    Ok(())
}

fn write_file(files: &Files, path: PathBuf, bytes: &[u8]) -> Result<(), ApplyError> {
    let written = files.write(&path, bytes);
    written.map_err(|error| ApplyError::File(error, path))
}

fn put(
    on: &Transaction<'_>,
    table: &str,
    key: &str,
    id: &str,
    record: &impl Serialize,
) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO {table} ({key}, record) VALUES (?, ?)");
    on.prepare_cached(&sql)?
        .execute(params![id, text(record)])?;
    Ok(())
}

fn text(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("records have text keys")
}
