//! The operations of a run, and why they waited.

use axum::extract::State;
use jiff::Timestamp;
use tinkrs_types::ModelId;
use tinkrs_wire::op::run_view::{OperationsQuery, RunOperation, RunOperations, Wait};

use crate::Server;
use crate::api::Plain;
use crate::error::ApiError;
use crate::extract::{Caller, InPath, Parameters};
use crate::operations::forward_backward::{FORWARD_BACKWARD, FORWARD_BACKWARD_JSON};
use crate::store::studio::{JournalEntry, Reading};
use crate::store::tables::spans::RunSpan;
use crate::studio::waits::Waits;

/// How many operations are listed, unless a request says otherwise, and at most.
const LIMIT: u64 = 200;
const MOST: u64 = 1000;

pub(crate) async fn list(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(run): InPath<String>,
    Parameters(query): Parameters<OperationsQuery>,
) -> Result<Plain<RunOperations>, ApiError> {
    let run = server.own_run(owner, &run)?;
    let limit = query.limit.unwrap_or(LIMIT).clamp(1, MOST) as usize;
    let read = move |server: &Server, reading: &Reading<'_>| {
        let mut operations = match query.before {
            None => server.pending(reading, &run, limit)?,
            Some(_) => Vec::new(),
        };
        let before = query.before.unwrap_or(i64::MAX);
        let left = limit - operations.len();
        let ended = reading.spans_before(&run, before, left + 1)?;
        let more = ended.len() > left;
        operations.extend(ended.into_iter().take(left).map(of_span));
        Ok(RunOperations { operations, more })
    };
    server.read(read).await.map(Plain)
}

impl Server {
    /// Lists the operations of a run that have not ended, the latest first.
    fn pending(
        &self,
        reading: &Reading<'_>,
        run: &ModelId,
        most: usize,
    ) -> Result<Vec<RunOperation>, ApiError> {
        let journal = reading.journal(run, most)?;
        let pending: Vec<_> = journal
            .into_iter()
            .filter(|entry| entry.outcome.is_none())
            .collect();
        let first = pending.last().map(|entry| entry.seq_id);
        let missing = self.registry().runs.get(run).map(|run| run.order.next());
        let activity = self.shared().activity.now(run);
        let is_begun = activity.begun > 0;
        let now = Timestamp::now().as_millisecond();
        let describe = |entry: JournalEntry| {
            let ms = u64::try_from(now - entry.accepted).unwrap_or(0);
            let reason = if missing.is_some_and(|missing| entry.seq_id > missing) {
                Some("gap")
            } else if Some(entry.seq_id) != first {
                Some("compute")
            } else {
                (!is_begun).then_some("turn")
            };
            let reason = reason.map(str::to_owned);
            let is_computed = is_begun && Some(entry.seq_id) == first;
            RunOperation {
                number: None,
                request_id: entry.id,
                kind: kind(&entry.kind).to_owned(),
                seq_id: Some(entry.seq_id),
                outcome: None,
                accepted: entry.accepted,
                started: is_computed.then(|| activity.begun_at.max(entry.accepted)),
                ended: None,
                compute_ms: None,
                waits: reason
                    .into_iter()
                    .map(|reason| Wait { reason, ms })
                    .collect(),
            }
        };
        Ok(pending.into_iter().map(describe).collect())
    }
}

/// Describes an operation that has ended.
pub(super) fn of_span(found: RunSpan) -> RunOperation {
    let span = found.span;
    RunOperation {
        number: Some(found.number),
        request_id: span.request.into(),
        kind: kind(&span.kind).to_owned(),
        seq_id: span.seq_id,
        outcome: Some(span.outcome),
        accepted: span.accepted,
        started: Some(span.started),
        ended: Some(span.ended),
        compute_ms: found.busy_ms,
        waits: waits(found.waits),
    }
}

fn waits(waits: Waits) -> Vec<Wait> {
    let reasons = waits.reasons();
    let wait = |(reason, ms): (&str, u64)| Wait {
        reason: reason.to_owned(),
        ms,
    };
    reasons.map(wait).collect()
}

/// An operation is the same however its request was written.
fn kind(stored: &str) -> &str {
    if stored == FORWARD_BACKWARD_JSON.name {
        FORWARD_BACKWARD.name
    } else {
        stored
    }
}
