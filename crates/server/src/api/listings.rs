//! Lists of training runs and checkpoints.

use axum::extract::{Path, Query, State};
use serde::Deserialize;
use tinkrs_types::{CheckpointKind, CheckpointPage, Cursor, ModelId, TrainingRun, TrainingRunPage};

use super::Plain;
use crate::Server;
use crate::error::Refusal;
use crate::registry::Run;

/// The owner of everything, until there are several.
const OWNER: &str = "local";

/// Which part of a list to show.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    limit: Option<u64>,
    offset: Option<u64>,
    project_id: Option<String>,
}

impl Page {
    fn cut<T>(&self, items: Vec<T>, default_limit: u64) -> (Vec<T>, Cursor) {
        let cursor = Cursor {
            offset: self.offset.unwrap_or(0),
            limit: self.limit.unwrap_or(default_limit),
            total_count: items.len() as u64,
        };
        let count = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let items = items.into_iter();
        let items = items.skip(count(cursor.offset)).take(count(cursor.limit));
        (items.collect(), cursor)
    }
}

pub(crate) async fn training_runs(
    State(server): State<Server>,
    Query(page): Query<Page>,
) -> Result<Plain<TrainingRunPage>, Refusal> {
    if let Some(project) = &page.project_id {
        return Err(Refusal::bad_request(format!(
            "`project_id`: found `{project}`, but this server has no projects"
        )));
    }
    let (training_runs, cursor) = page.cut(server.training_runs(), 20);
    Ok(Plain(TrainingRunPage {
        training_runs,
        cursor,
    }))
}

pub(crate) async fn training_run(
    State(server): State<Server>,
    Path(run_id): Path<String>,
) -> Result<Plain<TrainingRun>, Refusal> {
    let id = ModelId::new(run_id);
    let mut registry = server.registry();
    Ok(Plain(server.describe(&id, registry.run(&id)?)))
}

pub(crate) async fn run_checkpoints(
    State(server): State<Server>,
    Path(run_id): Path<String>,
) -> Result<Plain<CheckpointPage>, Refusal> {
    let id = ModelId::new(run_id);
    server.registry().run(&id)?;
    Ok(Plain(CheckpointPage {
        checkpoints: server.inner().checkpoints.list(Some(&id)),
        cursor: None,
    }))
}

pub(crate) async fn checkpoints(
    State(server): State<Server>,
    Query(page): Query<Page>,
) -> Plain<CheckpointPage> {
    let (checkpoints, cursor) = page.cut(server.inner().checkpoints.list(None), 100);
    Plain(CheckpointPage {
        checkpoints,
        cursor: Some(cursor),
    })
}

impl Server {
    /// Lists the training runs, the one used last first.
    fn training_runs(&self) -> Vec<TrainingRun> {
        let registry = self.registry();
        let describe = |(id, run): (&ModelId, &Run)| self.describe(id, run);
        let mut runs: Vec<_> = registry.runs.iter().map(describe).collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.last_request_time));
        runs
    }

    fn describe(&self, id: &ModelId, run: &Run) -> TrainingRun {
        let checkpoints = self.inner().checkpoints.list(Some(id));
        let newest = |kind: CheckpointKind| {
            let mut checkpoints = checkpoints.iter();
            checkpoints.find(|c| c.checkpoint_type == kind).cloned()
        };
        TrainingRun {
            training_run_id: id.clone(),
            base_model: run.base.name.clone(),
            model_owner: OWNER.to_owned(),
            is_lora: true,
            corrupted: false,
            lora_rank: Some(run.lora.rank),
            last_request_time: run.last_request_time,
            last_checkpoint: newest(CheckpointKind::Training),
            last_sampler_checkpoint: newest(CheckpointKind::Sampler),
            user_metadata: run.user_metadata.clone(),
        }
    }
}
