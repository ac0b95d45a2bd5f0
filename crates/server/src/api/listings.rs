//! Lists of training runs and checkpoints.

use std::collections::HashMap;

use axum::extract::State;
use jiff::Timestamp;
use tinkrs_types::CheckpointKind;
use tinkrs_types::rest::{CheckpointPage, Cursor, TrainingRun, TrainingRunPage};
use tinkrs_wire::query::{PageQuery, ScopeQuery};

use super::{Plain, check_project};
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, InPath, Parameters};
use crate::registry::records::RunRecord;

/// Cuts a page out of a list. Owners see nothing of each other in a list, so that both access scopes
/// are the same.
pub(super) fn cut<T>(
    page: &PageQuery,
    items: Vec<T>,
    default_limit: u64,
) -> Result<(Vec<T>, Cursor), ApiError> {
    page.project_id.as_deref().map(check_project).transpose()?;
    let cursor = Cursor::new(
        page.offset.unwrap_or(0),
        page.limit.unwrap_or(default_limit),
        items.len() as u64,
    );
    let count = |number| usize::try_from(number).unwrap_or(usize::MAX);
    let items = items.into_iter();
    let items = items.skip(count(cursor.offset)).take(count(cursor.limit));
    Ok((items.collect(), cursor))
}

pub(crate) async fn training_runs(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(page): Parameters<PageQuery>,
) -> Result<Plain<TrainingRunPage>, ApiError> {
    let (runs, cursor) = cut(&page, server.runs(owner)?, 20)?;
    let describe = |(record, time): (RunRecord, Timestamp)| server.describe(&record, time);
    let training_runs = runs.into_iter().map(describe).collect();
    Ok(Plain(TrainingRunPage::new(training_runs, cursor)))
}

pub(crate) async fn training_run(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(run_id): InPath<String>,
    _: Parameters<ScopeQuery>,
) -> Result<Plain<TrainingRun>, ApiError> {
    let mut registry = server.registry();
    let id = registry.run_id(owner, &run_id)?;
    let run = registry.run(owner, &id)?;
    Ok(Plain(server.describe(&run.record, run.last_request)))
}

pub(crate) async fn run_checkpoints(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(run_id): InPath<String>,
) -> Result<Plain<CheckpointPage>, ApiError> {
    let id = {
        let mut registry = server.registry();
        let id = registry.run_id(owner, &run_id)?;
        registry.run(owner, &id)?;
        id
    };
    Ok(Plain(CheckpointPage::new(
        server.shared().checkpoints.list(owner, Some(&id)),
        None,
    )))
}

pub(crate) async fn checkpoints(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(page): Parameters<PageQuery>,
) -> Result<Plain<CheckpointPage>, ApiError> {
    let (checkpoints, cursor) = cut(&page, server.shared().checkpoints.list(owner, None), 100)?;
    Ok(Plain(CheckpointPage::new(checkpoints, Some(cursor))))
}

impl Server {
    /// Lists an owner's training runs, the one used last first.
    pub(crate) fn runs(&self, owner: Owner) -> Result<Vec<(RunRecord, Timestamp)>, ApiError> {
        let stored = self.shared().store.runs_of(owner)?;
        let stored = stored
            .into_iter()
            .map(|run| (run.record.id.clone(), (run.record, run.last_request)));
        let mut runs: HashMap<_, _> = stored.collect();
        // What is in memory is newer, or not stored yet.
        let registry = self.registry();
        let own = registry
            .runs
            .values()
            .filter(|run| run.record.owner == owner);
        runs.extend(own.map(|run| {
            let id = run.record.id.clone();
            (id, (run.record.clone(), run.last_request))
        }));
        drop(registry);
        let mut runs: Vec<_> = runs.into_values().collect();
        runs.sort_by(|(a, a_time), (b, b_time)| (b_time, &b.id).cmp(&(a_time, &a.id)));
        Ok(runs)
    }

    fn describe(&self, record: &RunRecord, last_request_time: Timestamp) -> TrainingRun {
        let checkpoints = &self.shared().checkpoints;
        let checkpoints = checkpoints.list(record.owner, Some(&record.id));
        let newest = |kind: CheckpointKind| {
            let mut checkpoints = checkpoints.iter();
            checkpoints.find(|c| c.checkpoint_type == kind).cloned()
        };
        let (id, base_model) = (record.id.clone(), record.base_model.as_str());
        let owner = record.owner.to_string();
        let mut run = TrainingRun::new(id, base_model, owner, last_request_time);
        run.name = Some(record.name().to_string());
        run.corrupted = record.corrupted;
        run.lora_rank = Some(record.lora.rank);
        run.last_checkpoint = newest(CheckpointKind::Training);
        run.last_sampler_checkpoint = newest(CheckpointKind::Sampler);
        run.user_metadata = record.user_metadata.clone();
        run.numerics = record.numerics.clone();
        run.earlier_numerics = record.earlier_numerics.clone();
        run
    }
}
