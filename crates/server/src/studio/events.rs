//! Changes to runs as they happen, as server-sent events.
//!
//! Whatever happens to a run is a word to those who watch ([`activity`](super::activity)), and nothing at all when nobody
//! does. A watcher collects such words for a moment and then reads what is new from the database, so many steps a
//! second cost it a few reads, and an event is made when its connection has room for one. A client that does not read
//! is dropped by the limits of its connection, and goes on where it was when it comes back: the id of an event
//! says how far it has come.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use tinkrs_types::ModelId;
use tinkrs_wire::op::run_view::{EventsQuery, MetricsEvent, OperationEvent};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio::time::Instant;

use super::operations::of_span;
use crate::Server;
use crate::auth::{Owner, Pass};
use crate::endpoints::server_sent::{self, Events};
use crate::error::ApiError;
use crate::extract::Parameters;
use crate::store::studio::Reading;
use crate::studio::activity::Changed;

/// How many streams may be open, of all owners together.
pub(crate) const STREAMS: usize = 256;
/// How long changes are collected before they are read: of one run, and of all, where nobody looks at every step.
const COLLECT: Duration = Duration::from_millis(250);
const COLLECT_ALL: Duration = Duration::from_secs(1);
/// How long nothing is sent before a comment says that the connection is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How many points and operations are read at once. The rest comes with the next events.
const POINTS: usize = 2000;
const OPERATIONS: usize = 200;

pub(crate) async fn stream(
    State(server): State<Server>,
    Extension(pass): Extension<Pass>,
    Parameters(query): Parameters<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let owner = pass.owner;
    let run = query
        .run
        .map(|run| server.own_run(owner, &run))
        .transpose()?;
    // A link to one run hears of that run.
    if let Some(shared) = &pass.run
        && run.as_ref() != Some(shared)
    {
        return Err(ApiError::forbidden(format!(
            "this link reads the run {shared} and nothing else: `?run={shared}`"
        )));
    }
    let permit = std::sync::Arc::clone(&server.shared().event_streams).try_acquire_owned();
    let permit = permit.map_err(|_| ApiError::busy("too many pages are open"))?;
    // Before the first look, so that nothing is missed in between.
    let changes = server.shared().activity.watch();
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let resumed = last.and_then(Cursor::parse);
    let start = match (resumed, run.clone()) {
        (Some(cursor), _) => cursor,
        (None, run) => {
            server
                .read(move |_, reading| Cursor::now(reading, run.as_ref()))
                .await?
        }
    };
    let mut watcher = Watcher {
        server,
        owner,
        run,
        cursor: start,
        changes,
        dirty: BTreeSet::new(),
        look_again: false,
        is_first: true,
        _permit: permit,
    };
    if resumed.is_some() {
        watcher.catch_up().await?;
    }
    Ok(server_sent::respond(watcher))
}

/// How far a watcher has come: the last operation of all, and the last step of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    operation: i64,
    step: i64,
}

impl Cursor {
    fn parse(id: &str) -> Option<Self> {
        let (operation, step) = id.split_once('.')?;
        Some(Self {
            operation: operation.parse().ok()?,
            step: step.parse().ok()?,
        })
    }

    fn now(reading: &Reading<'_>, run: Option<&ModelId>) -> Result<Self, ApiError> {
        let step = match run {
            Some(run) => last_step(reading, run)?,
            None => 0,
        };
        let operation = reading.newest_span()?;
        Ok(Self { operation, step })
    }

    fn id(self) -> String {
        format!("id: {}.{}\n", self.operation, self.step)
    }
}

fn last_step(reading: &Reading<'_>, run: &ModelId) -> Result<i64, ApiError> {
    let steps = reading.series(run)?.into_iter().map(|it| it.last_step);
    Ok(steps.max().unwrap_or(0))
}

struct Watcher {
    server: Server,
    owner: Owner,
    /// The one that is watched, or all of the owner.
    run: Option<ModelId>,
    cursor: Cursor,
    changes: broadcast::Receiver<Changed>,
    dirty: BTreeSet<ModelId>,
    /// Whether there may be more than was read, or what was told of is not stored yet.
    look_again: bool,
    is_first: bool,
    _permit: OwnedSemaphorePermit,
}

impl Watcher {
    /// Looks at all that has happened since the cursor.
    async fn catch_up(&mut self) -> Result<(), ApiError> {
        let (owner, since) = (self.owner, self.cursor.operation);
        self.dirty = match &self.run {
            Some(run) => BTreeSet::from([run.clone()]),
            None => {
                let read =
                    move |_: &Server, reading: &Reading<'_>| Ok(reading.runs_since(owner, since)?);
                self.server.read(read).await?.into_iter().collect()
            }
        };
        Ok(())
    }

    fn collect(&self) -> Duration {
        match self.run {
            Some(_) => COLLECT,
            None => COLLECT_ALL,
        }
    }

    fn note(&mut self, changed: Result<Changed, RecvError>) -> bool {
        match changed {
            Ok(Changed { owner, run }) => {
                let is_meant = self.run.as_ref().is_none_or(|watched| *watched == run);
                if owner == self.owner && is_meant {
                    self.dirty.insert(run);
                }
                true
            }
            // Too much has happened to say of whom.
            Err(RecvError::Lagged(_)) => {
                self.dirty.extend(self.run.clone());
                self.look_again = true;
                true
            }
            Err(RecvError::Closed) => false,
        }
    }

    /// Collects what changes, until there is something to read, or nothing for a while. `None` at the end.
    async fn wait(&mut self) -> Option<()> {
        let mut until = Instant::now() + HEARTBEAT;
        if self.look_again || !self.dirty.is_empty() {
            until = Instant::now() + self.collect();
        }
        let server = self.server.clone();
        let closing = server.closing();
        tokio::pin!(closing);
        loop {
            tokio::select! {
                () = &mut closing => return None,
                () = tokio::time::sleep_until(until) => return Some(()),
                changed = self.changes.recv() => {
                    let was_clean = self.dirty.is_empty() && !self.look_again;
                    if !self.note(changed) {
                        return None;
                    }
                    if was_clean && (self.look_again || !self.dirty.is_empty()) {
                        until = until.min(Instant::now() + self.collect());
                    }
                }
            }
        }
    }

    /// Reads what is new, as events.
    async fn read(&mut self) -> Result<Vec<u8>, ApiError> {
        if std::mem::take(&mut self.look_again) && self.dirty.is_empty() {
            self.catch_up().await?;
        }
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.is_empty() {
            return Ok(Vec::new());
        }
        let (run, cursor, owner) = (self.run.clone(), self.cursor, self.owner);
        let read = move |server: &Server, reading: &Reading<'_>| match run {
            Some(run) => server.news_of_run(reading, &run, cursor),
            None => server.news_of_all(reading, owner, &dirty, cursor),
        };
        let (bytes, cursor, has_more) = self.server.read(read).await?;
        self.cursor = cursor;
        self.look_again = has_more;
        Ok(bytes)
    }
}

impl Events for Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_first) {
            // A browser that comes back asks for what it has missed since this.
            let hello = format!("retry: 2000\n{}: watching\n\n", self.cursor.id());
            return Some(hello.into());
        }
        loop {
            let waited = Instant::now();
            self.wait().await?;
            match self.read().await {
                Ok(bytes) if !bytes.is_empty() => return Some(bytes.into()),
                Ok(_) if waited.elapsed() >= HEARTBEAT => {
                    return Some(Bytes::from_static(b": still here\n\n"));
                }
                Ok(_) => {}
                // It comes back, and is told then.
                Err(_) => return None,
            }
        }
    }
}

/// Events, how far they lead, and whether there is more.
type News = (Vec<u8>, Cursor, bool);

impl Server {
    /// Every step and operation of a run that is new, and the run itself.
    fn news_of_run(
        &self,
        reading: &Reading<'_>,
        run: &ModelId,
        mut cursor: Cursor,
    ) -> Result<News, ApiError> {
        let mut events = Vec::new();
        let points = reading.points_since(run, cursor.step, POINTS)?;
        let is_cut = points.len() == POINTS;
        let mut steps = BTreeMap::<i64, BTreeMap<String, f64>>::new();
        for (name, step, value) in points {
            steps.entry(step).or_default().insert(name, value);
        }
        if is_cut && steps.len() > 1 {
            // The last one may be incomplete.
            steps.pop_last();
        }
        for (step, metrics) in steps {
            cursor.step = step;
            let run = run.clone();
            let event = MetricsEvent { run, step, metrics };
            server_sent::named(&mut events, "metrics", &event);
        }
        let operations = reading.spans_since(run, cursor.operation, OPERATIONS)?;
        let has_more = is_cut || operations.len() == OPERATIONS;
        for found in operations {
            cursor.operation = found.number;
            let (run, operation) = (run.clone(), of_span(found));
            server_sent::named(&mut events, "operation", &OperationEvent { run, operation });
        }
        if let Some(found) = reading.run(run)? {
            server_sent::named(&mut events, "run", &self.summary(reading, &found)?);
        }
        Ok((with_id(events, cursor), cursor, has_more))
    }

    /// Each of these runs as it is now.
    fn news_of_all(
        &self,
        reading: &Reading<'_>,
        owner: Owner,
        runs: &BTreeSet<ModelId>,
        mut cursor: Cursor,
    ) -> Result<News, ApiError> {
        let newest = reading.newest_span()?;
        let mut events = Vec::new();
        for id in runs {
            let found = reading.run(id)?;
            let Some(found) = found.filter(|run| run.record.owner == owner) else {
                continue;
            };
            let summary = self.summary(reading, &found)?;
            let event = MetricsEvent {
                run: id.clone(),
                step: summary.step,
                metrics: summary.last.clone(),
            };
            server_sent::named(&mut events, "metrics", &event);
            server_sent::named(&mut events, "run", &summary);
        }
        cursor.operation = newest;
        Ok((with_id(events, cursor), cursor, false))
    }
}

/// Has a browser remember how far the events lead. The id goes with the last of them: whoever misses one of them
/// misses the id, too.
fn with_id(events: Vec<u8>, cursor: Cursor) -> Vec<u8> {
    if events.is_empty() {
        return events;
    }
    let mut all = events;
    // Before the empty line that ends the last event.
    all.pop();
    all.extend_from_slice(cursor.id().as_bytes());
    all.push(b'\n');
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_being_an_id() {
        let cursor = Cursor {
            operation: 12,
            step: 7,
        };
        assert_eq!(cursor.id(), "id: 12.7\n");
        assert_eq!(Cursor::parse("12.7"), Some(cursor));
        for bad in ["", "12", "a.b", "1.2.3", "99999999999999999999.1"] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_last_of_several_events_has_the_id() {
        let mut events = Vec::new();
        server_sent::named(&mut events, "a", &1);
        server_sent::named(&mut events, "b", &2);
        let cursor = Cursor {
            operation: 1,
            step: 2,
        };
        let text = String::from_utf8(with_id(events, cursor)).unwrap();
        assert_eq!(text, "event: a\ndata: 1\n\nevent: b\ndata: 2\nid: 1.2\n\n");
    }
}
