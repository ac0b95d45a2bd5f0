//! What is new of runs, as events, and how far a watcher has come.

use std::collections::{BTreeMap, BTreeSet};

use tinkrs_types::ModelId;
use tinkrs_wire::op::metrics::MetricSource;
use tinkrs_wire::op::run_view::{MetricsEvent, OperationEvent};

use super::feed::{Changes, Reported, Topic};
use super::operations::of_span;
use crate::Server;
use crate::auth::Owner;
use crate::endpoints::server_sent;
use crate::error::ApiError;
use crate::store::studio::Reading;
use crate::store::tables::metrics::Source;

/// How many points and operations are read at once. The rest comes with the next events.
const POINTS: usize = 2000;
const OPERATIONS: usize = 200;

/// How far a watcher has come: the last operation of all, and the last step of its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) operation: i64,
    pub(crate) step: i64,
}

impl Cursor {
    /// Reads the id of an event.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let (operation, step) = id.split_once('.')?;
        Some(Self {
            operation: operation.parse().ok()?,
            step: step.parse().ok()?,
        })
    }

    /// Returns where the news of a topic are now.
    pub(super) fn now(reading: &Reading<'_>, topic: &Topic) -> Result<Self, ApiError> {
        let step = match topic {
            Topic::Run(run) => last_step(reading, run)?,
            Topic::Owner(_) => 0,
        };
        let operation = reading.newest_span()?;
        Ok(Self { operation, step })
    }

    /// Returns the earlier of two, in each respect.
    pub(super) fn min(self, other: Self) -> Self {
        Self {
            operation: self.operation.min(other.operation),
            step: self.step.min(other.step),
        }
    }

    /// Writes the line that has a browser remember it.
    pub(super) fn id(self) -> String {
        format!("id: {}.{}\n", self.operation, self.step)
    }
}

fn last_step(reading: &Reading<'_>, run: &ModelId) -> Result<i64, ApiError> {
    let all = reading.series(run)?;
    let of_server = all.iter().filter(|series| series.source == Source::Server);
    Ok(of_server.map(|it| it.last_step).max().unwrap_or(0))
}

/// Events, how far they lead, and whether there is more.
pub(super) struct Found {
    pub(super) events: Vec<u8>,
    pub(super) cursor: Cursor,
    pub(super) has_more: bool,
}

impl Server {
    /// Reads what is new of a topic: of a run between two cursors; of an owner, runs of which operations have ended,
    /// and those that are known to have changed, as they are now.
    pub(super) fn news(
        &self,
        reading: &Reading<'_>,
        topic: &Topic,
        changes: Changes,
        (from, until): (Cursor, Option<Cursor>),
    ) -> Result<Found, ApiError> {
        match topic {
            Topic::Run(run) => self.news_of_run(reading, run, changes.reported, (from, until)),
            Topic::Owner(owner) => {
                let mut changed = changes.runs;
                changed.extend(reading.runs_since(*owner, from.operation)?);
                self.news_of_all(reading, *owner, &changed, from)
            }
        }
    }

    /// Every step and operation of a run that is new, what clients have reported, and the run itself. Clients report of
    /// any step in any order, so a cursor counts the server's steps alone; whoever comes back hears of what was reported
    /// of the steps since.
    fn news_of_run(
        &self,
        reading: &Reading<'_>,
        run: &ModelId,
        reported: Vec<Reported>,
        (mut cursor, until): (Cursor, Option<Cursor>),
    ) -> Result<Found, ApiError> {
        let with_clients = until.is_some();
        let until = until.unwrap_or(Cursor {
            operation: i64::MAX,
            step: i64::MAX,
        });
        let mut events = Vec::new();
        let of_steps = (cursor.step, until.step);
        let points = reading.points_between(run, of_steps, with_clients, POINTS)?;
        let is_cut = points.len() == POINTS;
        let mut steps = BTreeMap::<i64, Vec<_>>::new();
        for point in points {
            steps.entry(point.step).or_default().push(point);
        }
        if is_cut && steps.len() > 1 {
            // The last one may be incomplete.
            steps.pop_last();
        }
        let mut tell = |step, source, metrics: BTreeMap<_, _>| {
            if !metrics.is_empty() {
                let event = MetricsEvent {
                    run: run.clone(),
                    step,
                    source: Some(source),
                    metrics,
                };
                server_sent::named(&mut events, "metrics", &event);
            }
        };
        for (step, points) in steps {
            cursor.step = step;
            for source in [Source::Server, Source::Client] {
                let of_source = points.iter().filter(|point| point.source == source);
                let metrics = of_source.map(|point| (point.name.clone(), point.value));
                tell(step, source.into(), metrics.collect());
            }
        }
        for Reported { step, metrics } in reported {
            tell(step, MetricSource::Client, metrics);
        }
        let numbers = (cursor.operation, until.operation);
        let operations = reading.spans_between(run, numbers, OPERATIONS)?;
        let has_more = is_cut || operations.len() == OPERATIONS;
        for found in operations {
            cursor.operation = found.number;
            let (run, operation) = (run.clone(), of_span(found));
            server_sent::named(&mut events, "operation", &OperationEvent { run, operation });
        }
        if let Some(found) = reading.run(run)? {
            server_sent::named(&mut events, "run", &self.summary(reading, &found)?);
        }
        Ok(found(events, cursor, has_more))
    }

    /// Each of these runs as it is now.
    fn news_of_all(
        &self,
        reading: &Reading<'_>,
        owner: Owner,
        runs: &BTreeSet<ModelId>,
        mut cursor: Cursor,
    ) -> Result<Found, ApiError> {
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
                source: None,
                metrics: summary.last.clone(),
            };
            server_sent::named(&mut events, "metrics", &event);
            server_sent::named(&mut events, "run", &summary);
        }
        cursor.operation = reading.newest_span()?;
        Ok(found(events, cursor, false))
    }
}

/// Has a browser remember how far the events lead. The id goes with the last of them: whoever misses one of them
/// misses the id, too.
fn found(mut events: Vec<u8>, cursor: Cursor, has_more: bool) -> Found {
    if !events.is_empty() {
        // Before the empty line that ends the last event.
        events.pop();
        events.extend_from_slice(cursor.id().as_bytes());
        events.push(b'\n');
    }
    Found {
        events,
        cursor,
        has_more,
    }
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
        let long = format!("{}.1", "9".repeat(1 << 20));
        for bad in ["", "12", "a.b", "1.2.3", "99999999999999999999.1", &long] {
            assert_eq!(Cursor::parse(bad), None);
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
        let text = String::from_utf8(found(events, cursor, false).events).unwrap();
        assert_eq!(text, "event: a\ndata: 1\n\nevent: b\ndata: 2\nid: 1.2\n\n");
        assert!(found(Vec::new(), cursor, false).events.is_empty());
    }
}
