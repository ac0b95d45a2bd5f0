//! The list of runs.

use std::collections::BTreeMap;

use axum::extract::State;
use tinkrs_wire::op::run_view::{RunCost, RunState, RunSummaries, RunSummary, RunsQuery};

use crate::Server;
use crate::api::Plain;
use crate::error::ApiError;
use crate::extract::{Caller, Parameters};
use crate::registry::records::RunRecord;
use crate::store::LoadedRun;
use crate::store::studio::Reading;
use crate::store::tables::metrics::{Series, Source};
use crate::studio::activity::Now;

/// How many runs are listed, unless a request says otherwise, and at most.
const LIMIT: u64 = 50;
const MOST: u64 = 500;
/// The longest text to search for.
const QUERY_BYTES: usize = 256;
/// How many metrics a summary has.
const METRICS: usize = 64;

pub(crate) async fn list(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(query): Parameters<RunsQuery>,
) -> Result<Plain<RunSummaries>, ApiError> {
    let text = query.query.unwrap_or_default();
    if text.len() > QUERY_BYTES {
        let found = format!("{} bytes", text.len());
        let allowed = format!("at most {QUERY_BYTES} bytes");
        return Err(tinkrs_types::InvalidInput::new("query", found, allowed).into());
    }
    let limit = query.limit.unwrap_or(LIMIT).min(MOST).cast_signed();
    let offset = i64::try_from(query.offset.unwrap_or(0)).unwrap_or(i64::MAX);
    let read = move |server: &Server, reading: &Reading<'_>| {
        let (runs, total) = reading.runs(owner, text.trim(), (offset, limit))?;
        let runs = runs.iter().map(|run| server.summary(reading, run));
        let runs = runs.collect::<Result<_, ApiError>>()?;
        Ok(RunSummaries { runs, total })
    };
    server.read(read).await.map(Plain)
}

impl Server {
    /// Describes a run in a few words.
    pub(super) fn summary(
        &self,
        reading: &Reading<'_>,
        run: &LoadedRun,
    ) -> Result<RunSummary, ApiError> {
        let record = &run.record;
        let session = reading.session_of(record.session.as_str())?;
        let progress = reading.progress(&record.id)?;
        let last = latest(reading.series(&record.id)?);
        let (client, tags) = match session {
            Some(session) => (session.sdk_version, session.tags),
            None => (String::new(), Vec::new()),
        };
        Ok(RunSummary {
            id: record.id.clone(),
            name: record.name().to_string(),
            base_model: record.base_model.clone(),
            client,
            state: state(record, self.shared().activity.now(&record.id)),
            detail: record.closed.clone(),
            step: progress.steps,
            tokens_per_second: last.get("tokens_per_second").copied(),
            last,
            created_at: record.created_at,
            last_request_at: run.last_request,
            rank: record.lora.rank,
            cost: RunCost {
                tokens: progress.tokens,
                seconds: progress.busy_ms / 1000.0,
            },
            tags,
            labels: record
                .user_metadata
                .clone()
                .unwrap_or_default()
                .into_iter()
                .collect(),
            started_from: record.started_from.as_ref().map(ToString::to_string),
            session_id: record.session.clone(),
        })
    }
}

/// Picks the last values that a summary has: the server's, then those that lists show, then others by name.
fn latest(mut series: Vec<Series>) -> BTreeMap<String, f64> {
    let is_headline = |name: &str| name == "reward" || name.ends_with("/reward/total");
    series.sort_by_key(|it| (it.source == Source::Client, !is_headline(&it.name)));
    let mut last = BTreeMap::new();
    for series in series {
        if last.len() < METRICS {
            last.entry(series.name).or_insert(series.last_value);
        }
    }
    last
}

fn state(record: &RunRecord, now: Now) -> RunState {
    match (record.corrupted, &record.closed, now) {
        (true, ..) => RunState::Failed,
        (_, Some(_), _) => RunState::Finished,
        (_, None, now) if now.begun > 0 => RunState::Training,
        (_, None, now) if now.pending > 0 => RunState::Waiting,
        (_, None, _) => RunState::Idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lists_show_is_not_crowded_out_by_other_metrics() {
        let series = |name: &str, source, value| Series {
            id: 0,
            name: name.to_owned(),
            source,
            count: 1,
            last_step: 1,
            last_value: value,
        };
        let mut all: Vec<_> = (0..100)
            .map(|number| series(&format!("env/{number:03}"), Source::Client, 0.0))
            .collect();
        all.push(series("loss", Source::Client, 9.0));
        all.push(series("loss", Source::Server, 1.0));
        all.push(series("reward", Source::Client, 2.0));
        all.push(series("tokens_per_second", Source::Server, 3.0));
        let last = latest(all);
        assert_eq!(last.len(), METRICS);
        for (name, value) in [("loss", 1.0), ("reward", 2.0), ("tokens_per_second", 3.0)] {
            assert_eq!(last.get(name), Some(&value), "{name}");
        }
    }
}
