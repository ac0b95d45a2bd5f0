//! Everything that can change in the data folder.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{ErrorCode, Transaction};
use serde_json::{Map, Value};
use tinkrs_types::{ModelId, RequestId, SamplingSessionId, SessionId, TinkerPath};

use super::files::Files;
use super::manifest;
use super::tables::payloads::{BODIES, RESULTS};
use super::tables::runs::Fallback;
use super::tables::{audit, metrics, records, requests, runs, spans, starts, usage};
use crate::auth::Owner;
use crate::registry::records::{RunRecord, SamplerRecord, SavedCheckpoint, SessionRecord};
use crate::results::OperationResult;
use crate::studio::measure::Measured;
use crate::studio::waits::Waits;

/// One change. Those of a batch are committed together.
#[derive(Debug)]
pub(crate) enum Change {
    /// Nothing; it is durable when all that was sent before it is.
    Nothing,
    /// Several things become true at the same moment.
    Together(Vec<Self>),
    /// A session is as described.
    Session(SessionRecord),
    /// A run is as described. A new one waits for sequence id 0, its creation.
    Run { record: RunRecord, is_new: bool },
    /// A run's weights, journal and snapshots are not needed any more.
    RunClosed(RunRecord),
    /// A run has given up on the sequence ids before this one.
    Abandoned { run: ModelId, next: i64 },
    /// A run's state after an operation is in a file. The snapshot before it stays, with the journal since.
    Snapshot { run: ModelId, seq_id: i64 },
    /// A run's snapshot is damaged: it goes on from the one before.
    SnapshotLost { run: ModelId },
    /// From here on a run computes other bits: what came before its snapshot cannot be repeated.
    NumericsChanged(RunRecord),
    /// A sampling session is as described.
    Sampler(SamplerRecord),
    /// A sampling session and its own folder are gone.
    SamplerGone(SamplingSessionId),
    /// A checkpoint is as described; the folder that it had before is not needed any more.
    Checkpoint {
        saved: SavedCheckpoint,
        replaced: Option<PathBuf>,
    },
    /// A checkpoint is gone, and its folder if no other checkpoint shares it.
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
    /// Tokens were used by a request that is not in the journal.
    Usage(Vec<Usage>),
    /// A client has reported metrics of a run.
    Metrics {
        run: ModelId,
        step: i64,
        values: Vec<(String, f64)>,
    },
    /// An owner did something that belongs in the audit log.
    Audit(AuditEntry),
}

impl Change {
    /// Whether the sync of a later change will do for it: no client was told of it, or a restart brings it about
    /// again.
    pub(super) fn can_wait(&self) -> bool {
        match self {
            Self::Ended { ending, .. } => ending.is_repeatable,
            Self::Snapshot { .. }
            | Self::SnapshotLost { .. }
            | Self::ResultsGone(_)
            | Self::Metrics { .. }
            | Self::Usage(_) => true,
            Self::Together(changes) => changes.iter().all(Self::can_wait),
            Self::Nothing
            | Self::Session(_)
            | Self::Run { .. }
            | Self::RunClosed(_)
            | Self::NumericsChanged(_)
            | Self::Abandoned { .. }
            | Self::Sampler(_)
            | Self::SamplerGone(_)
            | Self::Checkpoint { .. }
            | Self::CheckpointGone { .. }
            | Self::LossGone(_)
            | Self::Loss { .. }
            | Self::Request(_)
            | Self::Audit(_) => false,
        }
    }
}

/// A request that is promised a result.
#[derive(Debug)]
pub(crate) struct NewRequest {
    pub(crate) id: RequestId,
    pub(crate) owner: Owner,
    pub(crate) kind: &'static str,
    /// The run, sampler or session that it belongs to.
    pub(crate) subject: String,
    pub(crate) seq_id: Option<i64>,
    pub(crate) digest: Digest,
    /// What it has to draw by chance is drawn from this.
    pub(crate) seed: u64,
    pub(crate) accepted: Timestamp,
    pub(crate) body: Bytes,
    /// The failure of a request that cannot run.
    pub(crate) outcome: Option<OperationResult>,
    /// What comes into being with it.
    pub(crate) also: Vec<Change>,
}

/// The SHA-256 of a body.
pub(crate) type Digest = [u8; 32];

/// How a request ended, with all that has to become true at the same moment.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) outcome: OperationResult,
    /// The run that it was an operation of, and the operation's sequence id.
    pub(crate) of_run: Option<(ModelId, i64)>,
    /// Whether the run's snapshot was taken right after it.
    pub(crate) with_snapshot: bool,
    /// What else comes into being.
    pub(crate) also: Vec<Change>,
    pub(crate) usage: Vec<Usage>,
    /// The session that it was done for, and since when.
    pub(crate) begun: Option<(SessionId, Timestamp)>,
    /// Why it had waited.
    pub(crate) waits: Waits,
    /// How long it was computed, if that is known.
    pub(crate) busy: Option<Duration>,
    /// What it adds to the step of its run.
    pub(crate) measured: Option<Measured>,
    /// Whether a restart would compute the same result again from the request, to the bit.
    pub(crate) is_repeatable: bool,
}

impl From<OperationResult> for Ending {
    fn from(outcome: OperationResult) -> Self {
        Self {
            outcome,
            of_run: None,
            with_snapshot: false,
            also: Vec::new(),
            usage: Vec::new(),
            begun: None,
            waits: Waits::default(),
            busy: None,
            measured: None,
            is_repeatable: false,
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

/// An entry of the audit log: what an owner did.
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

/// Makes a change inside a transaction. Files that are not needed after its commit go to `unneeded`.
pub(super) fn apply(
    change: &Change,
    on: &Transaction<'_>,
    files: &Files,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    match change {
        Change::Nothing => starts::touch(on)?,
        Change::Together(changes) => {
            for change in changes {
                apply(change, on, files, unneeded)?;
            }
        }
        Change::Session(record) => records::SESSIONS.put(on, record.id.as_str(), record)?,
        Change::Run { record, is_new } => {
            if *is_new {
                runs::insert(on, record)?;
            }
            runs::set_record(on, record)?;
        }
        Change::RunClosed(record) => {
            runs::set_record(on, record)?;
            runs::set_snapshots(on, &record.id, None, Fallback::Nothing)?;
            drop_bodies(on, files, &record.id, i64::MAX, unneeded)?;
            // What remains of a run that was lost is left to be looked at.
            if !record.corrupted {
                unneeded.push(files.snapshots(&record.id));
            }
        }
        Change::Abandoned { run, next } => runs::advance(on, run, *next)?,
        Change::Snapshot { run, seq_id } => {
            snapshot(on, files, run, *seq_id, IsRepeatable::Yes, unneeded)?;
        }
        Change::SnapshotLost { run } => {
            let (_, fallback) = runs::snapshots(on, run)?;
            runs::set_snapshots(on, run, fallback.snapshot(), Fallback::Nothing)?;
        }
        Change::NumericsChanged(record) => {
            runs::set_record(on, record)?;
            if let (Some(seq_id), _) = runs::snapshots(on, &record.id)? {
                runs::set_snapshots(on, &record.id, Some(seq_id), Fallback::Nothing)?;
            }
        }
        Change::Sampler(record) => records::SAMPLERS.put(on, record.id.as_str(), record)?,
        Change::SamplerGone(id) => {
            let removed = records::SAMPLERS.remove::<SamplerRecord>(on, id.as_str())?;
            let folder = removed.as_ref().and_then(SamplerRecord::own_folder);
            unneeded.extend(folder.map(|folder| files.root().join(folder)));
        }
        Change::Checkpoint { saved, replaced } => {
            describe(files, &saved.folder, || manifest::put(files.root(), saved))?;
            records::CHECKPOINTS.put(on, &saved.path().to_string(), saved)?;
            unneeded.extend(replaced.iter().map(|folder| files.root().join(folder)));
        }
        Change::CheckpointGone { path, folder } => {
            let removed = records::CHECKPOINTS.remove::<SavedCheckpoint>(on, &path.to_string())?;
            if let (Some(saved), None) = (removed, folder) {
                let shared = files.root().join(&saved.folder);
                describe(files, &saved.folder, || manifest::take(&shared, path))?;
            }
            unneeded.extend(folder.iter().map(|folder| files.root().join(folder)));
        }
        Change::Loss { id, record } => records::LOSSES.put_text(on, id, record)?,
        Change::LossGone(id) => records::LOSSES.delete(on, id)?,
        Change::Request(request) => accept(request, on, files, unneeded)?,
        Change::Ended { id, ending } => end(id, ending, on, files, unneeded)?,
        Change::ResultsGone(ids) => {
            for id in ids {
                RESULTS.drop(on, files, id, unneeded)?;
                if requests::drop_result(on, id)? {
                    BODIES.drop(on, files, id, unneeded)?;
                }
            }
        }
        Change::Usage(used) => add_usage(on, used, Timestamp::now())?,
        Change::Metrics { run, step, values } => {
            let at = (*step, Timestamp::now().as_millisecond());
            let values = values.iter().map(|(name, value)| (name.as_str(), *value));
            let values: Vec<_> = values.collect();
            metrics::set(on, run.as_str(), metrics::Source::Client, at, &values)?;
        }
        Change::Audit(entry) => audit::insert(on, entry)?,
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
        BODIES.put(on, files, &request.id, &request.body)?;
    }
    requests::insert(on, request, waits)?;
    if let Some(outcome) = &request.outcome {
        store_outcome(&request.id, outcome, on, files)?;
    }
    runs::set_last_request(on, &request.subject, request.accepted)?;
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
        Some((run, seq_id)) => {
            runs::advance(on, run, seq_id.saturating_add(1))?;
            if ending.with_snapshot {
                snapshot(on, files, run, *seq_id, IsRepeatable::No, unneeded)?;
            }
        }
        // Only a run's operations are ever repeated after they have ended.
        None => {
            requests::drop_body(on, id)?;
            BODIES.drop(on, files, id, unneeded)?;
        }
    }
    let now = Timestamp::now();
    if let Some((session, started)) = &ending.begun {
        let busy_ms = ending.busy.map(|busy| busy.as_millis() as u64);
        let times = spans::Times {
            started: *started,
            ended: now,
            waits: ending.waits,
            busy_ms,
        };
        spans::insert(on, id, session, times)?;
    }
    if let (Some(measured), Some((run, _))) = (&ending.measured, &ending.of_run) {
        advance(on, run, measured, now)?;
    }
    add_usage(on, &ending.usage, now)
}

/// Takes an operation into the progress of its run, and its step into the run's metrics if it ended one.
fn advance(
    on: &Transaction<'_>,
    run: &ModelId,
    measured: &Measured,
    now: Timestamp,
) -> Result<(), ApplyError> {
    let mut progress = metrics::progress(on, run.as_str())?;
    let of_step = progress.advance(measured);
    metrics::set_progress(on, run, &progress)?;
    if let Some(values) = of_step {
        let at = (progress.steps, now.as_millisecond());
        metrics::set(on, run.as_str(), metrics::Source::Server, at, &values)?;
    }
    Ok(())
}

fn add_usage(on: &Transaction<'_>, all: &[Usage], now: Timestamp) -> Result<(), ApplyError> {
    for used in all {
        usage::add(on, now.as_second() / 3600, used)?;
    }
    Ok(())
}

fn store_outcome(
    id: &RequestId,
    outcome: &OperationResult,
    on: &Transaction<'_>,
    files: &Files,
) -> Result<(), ApplyError> {
    RESULTS.put(on, files, id, &outcome.bytes)?;
    Ok(requests::set_outcome(on, id, outcome)?)
}

/// Whether what a run did before a snapshot can be done again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IsRepeatable {
    Yes,
    /// The backend does not repeat exactly, or the operation loaded a checkpoint, which may be gone.
    No,
}

/// Notes a snapshot, and drops what is not needed any more: the one before the last, and the bodies of the
/// operations that the last includes. If the new one is damaged, the last and these operations are what the
/// run goes on from.
fn snapshot(
    on: &Transaction<'_>,
    files: &Files,
    run: &ModelId,
    seq_id: i64,
    is_repeatable: IsRepeatable,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    let (last, before) = runs::snapshots(on, run)?;
    let mut drop_snapshot = |seq_id: i64| unneeded.extend(files.snapshot_files(run, seq_id));
    if last.is_some_and(|last| last > seq_id) {
        // It took longer to write than one that was begun later.
        drop_snapshot(seq_id);
        return Ok(());
    }
    if last == Some(seq_id) {
        return Ok(());
    }
    let (fallback, up_to) = match (is_repeatable, last) {
        (IsRepeatable::No, _) => (Fallback::Nothing, Some(seq_id)),
        (IsRepeatable::Yes, None) => (Fallback::Creation, None),
        (IsRepeatable::Yes, Some(last)) => (Fallback::Snapshot(last), Some(last)),
    };
    for old in last.into_iter().chain(before.snapshot()) {
        if fallback != Fallback::Snapshot(old) {
            drop_snapshot(old);
        }
    }
    runs::set_snapshots(on, run, Some(seq_id), fallback)?;
    match up_to {
        Some(up_to) => drop_bodies(on, files, run, up_to, unneeded),
        None => Ok(()),
    }
}

fn describe(
    files: &Files,
    folder: &Path,
    write: impl FnOnce() -> io::Result<()>,
) -> Result<(), ApplyError> {
    let path = || files.root().join(folder).join(manifest::FILE);
    write().map_err(|error| ApplyError::File(error, path()))
}

fn drop_bodies(
    on: &Transaction<'_>,
    files: &Files,
    run: &ModelId,
    up_to: i64,
    unneeded: &mut Vec<PathBuf>,
) -> Result<(), ApplyError> {
    for id in requests::drop_bodies(on, run, up_to)? {
        BODIES.drop(on, files, &id, unneeded)?;
    }
    Ok(())
}
