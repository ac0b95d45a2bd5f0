//! Listings of runs, checkpoints and sessions.

use super::reply::{Reply, refuse};
use super::service::Session;
use super::training::Model;
use super::weights::Save;
use super::{BASE_MODEL, Recorded, Shared, State};
use serde_json::json;
use std::collections::BTreeMap;
use tinkrs_types::protocol::check_ttl;
use tinkrs_types::rest::{Checkpoint, CheckpointPage, Cursor, TrainingRun, TrainingRunPage};
use tinkrs_types::session::{
    SearchCursor, SessionInfo, SessionSearch, SessionSearchPage, SessionStatus, SessionSummary,
    StatusQuery, TraceExport,
};
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{CheckpointKind, LoraConfig, ModelId, SessionId, TinkerPath};
use tinkrs_wire::Body;
use tinkrs_wire::op::assign_session_project::AssignSessionProjectRequest;
use tinkrs_wire::op::list_sessions::ListSessionsResponse;
use tinkrs_wire::op::set_checkpoint_ttl::SetCheckpointTtlRequest;

/// Who owns everything.
pub(super) const OWNER: &str = "tml:organization_user:tester";

impl State {
    /// Adds runs with checkpoints, one run a session, as if clients had been here before.
    pub(super) fn add_runs(&mut self, runs: usize, checkpoints: usize) -> Vec<ModelId> {
        let added = (0..runs).map(|_| {
            let session_id = SessionId::new(format!("past-{}", self.next("past session")));
            let session = Session {
                created_at: self.now(),
                user_metadata: Some([("kind".to_owned(), "past".to_owned())].into()),
                display_name: Some(format!("Past {session_id}")),
                project_id: "default".into(),
                finished: None,
            };
            self.sessions.insert(session_id.clone(), session);
            let model_id = ModelId::in_session(&session_id, 0);
            let now = self.now();
            let (lora, optimizer) = (LoraConfig::new(32), OptimizerConfig::default());
            let model = Model::new(BASE_MODEL.to_owned(), lora, optimizer, now);
            self.models.insert(model_id.clone(), model);
            for step in 0..checkpoints {
                let save = Save::new(
                    model_id.clone(),
                    CheckpointKind::Training,
                    format!("step-{step}"),
                );
                self.save(save).expect("the names are new");
            }
            model_id
        });
        added.collect()
    }

    fn training_run(&self, id: &ModelId) -> Option<TrainingRun> {
        let model = self.models.get(id)?;
        let last = |kind: CheckpointKind| {
            let mut checkpoints = self.checkpoints.iter().rev().map(|c| &c.checkpoint);
            checkpoints
                .find(|c| c.tinker_path.run() == id && c.checkpoint_type == kind)
                .cloned()
        };
        let base_model = model.base_model.as_str();
        let mut run = TrainingRun::new(id.clone(), base_model, OWNER, model.last_request_time);
        run.lora_rank = Some(model.lora.rank);
        run.last_checkpoint = last(CheckpointKind::Training);
        run.last_sampler_checkpoint = last(CheckpointKind::Sampler);
        run.user_metadata = model.user_metadata.clone();
        Some(run)
    }

    pub(super) fn project_of(&self, run: &ModelId) -> Option<String> {
        let (session, _) = run.session()?;
        Some(self.sessions.get(&session)?.project_id.as_str().to_owned())
    }

    fn summary(&self, id: &SessionId, session: &Session) -> SessionSummary {
        let prefix = format!("{id}:");
        let of_session = |stored: &&super::weights::Stored| {
            let run = stored.checkpoint.tinker_path.run();
            run.as_str().starts_with(&prefix)
        };
        let checkpoints = self.checkpoints.iter().filter(of_session);
        let sizes: Vec<u64> = checkpoints
            .filter_map(|stored| stored.checkpoint.size_bytes)
            .collect();
        let status = match &session.finished {
            None => SessionStatus::Active,
            Some((reason, detail)) => SessionStatus::ClientFinished {
                reason: *reason,
                detail: detail.clone(),
            },
        };
        let project = session.project_id.clone();
        let mut summary = SessionSummary::new(id.clone(), OWNER, project, session.created_at);
        summary.checkpoints_count = sizes.len() as u64;
        summary.status = Some(status);
        summary.display_name = session.display_name.clone();
        summary.user_metadata = session.user_metadata.clone();
        summary.checkpoint_storage_bytes = Some(sizes.iter().sum());
        summary
    }
}

/// Cuts the page that a query asks for out of a listing.
fn page<T>(
    items: Vec<T>,
    query: &BTreeMap<String, String>,
    default: u64,
) -> Result<(Vec<T>, Cursor), Reply> {
    let number = |name: &str, default: u64| match query.get(name) {
        Some(text) => text
            .parse()
            .map_err(|_| refuse(400, &format!("{name} is not a number"))),
        None => Ok(default),
    };
    let cursor = Cursor::new(
        number("offset", 0)?,
        number("limit", default)?,
        items.len() as u64,
    );
    let items = items.into_iter().skip(cursor.offset as usize);
    Ok((items.take(cursor.limit as usize).collect(), cursor))
}

fn listed<T, R: serde::Serialize>(
    page: Result<(Vec<T>, Cursor), Reply>,
    listing: impl FnOnce(Vec<T>, Cursor) -> R,
) -> Reply {
    match page {
        Ok((items, cursor)) => Reply::json(&listing(items, cursor)),
        Err(reply) => reply,
    }
}

/// `training_runs`, newest first
pub(super) fn training_runs(shared: &Shared, request: &Recorded) -> Reply {
    let (state, query) = (shared.state(), request.query());
    let mut runs: Vec<TrainingRun> = state
        .models
        .keys()
        .filter(|id| {
            query
                .get("project_id")
                .is_none_or(|project| state.project_of(id).as_ref() == Some(project))
        })
        .filter_map(|id| state.training_run(id))
        .collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.last_request_time));
    listed(page(runs, &query, 20), |training_runs, cursor| {
        TrainingRunPage::new(training_runs, cursor)
    })
}

/// `training_run`
pub(super) fn training_run(shared: &Shared, request: &Recorded) -> Reply {
    match shared.state().training_run(&request.ids[0].as_str().into()) {
        Some(run) => Reply::json(&run),
        None => refuse(404, "no such run"),
    }
}

/// `run_checkpoints`, all of them
pub(super) fn run_checkpoints(shared: &Shared, request: &Recorded) -> Reply {
    let (state, run) = (shared.state(), ModelId::from(request.ids[0].as_str()));
    if !state.models.contains_key(&run) {
        return refuse(404, "no such run");
    }
    let mut checkpoints = newest_first(&state);
    checkpoints.retain(|checkpoint| *checkpoint.tinker_path.run() == run);
    Reply::json(&CheckpointPage::new(checkpoints, None))
}

/// `checkpoints`, newest first
pub(super) fn checkpoints(shared: &Shared, request: &Recorded) -> Reply {
    let all = newest_first(&shared.state());
    listed(page(all, &request.query(), 100), |checkpoints, cursor| {
        CheckpointPage::new(checkpoints, Some(cursor))
    })
}

fn newest_first(state: &State) -> Vec<Checkpoint> {
    let checkpoints = state.checkpoints.iter().rev();
    checkpoints
        .map(|stored| stored.checkpoint.clone())
        .collect()
}

/// Changes the checkpoint that a path names.
fn change(
    shared: &Shared,
    request: &Recorded,
    change: impl FnOnce(&mut Checkpoint) -> Result<(), Reply>,
) -> Reply {
    let path = match checkpoint_path(request) {
        Ok(path) => path,
        Err(reply) => return reply,
    };
    let mut state = shared.state();
    let mut stored = state.checkpoints.iter_mut();
    match stored.find(|stored| stored.checkpoint.tinker_path == path) {
        Some(stored) => match change(&mut stored.checkpoint) {
            Ok(()) => Reply::json(&json!({})),
            Err(reply) => reply,
        },
        None => refuse(404, "no such checkpoint"),
    }
}

/// Reads the path that the URL of a request names.
pub(super) fn checkpoint_path(request: &Recorded) -> Result<TinkerPath, Reply> {
    let [run, kind, name] = &request.ids[..] else {
        return Err(refuse(400, "not a checkpoint"));
    };
    CheckpointKind::from_segment(kind)
        .and_then(|kind| TinkerPath::new(run.as_str().into(), kind, name).ok())
        .ok_or_else(|| refuse(400, "not a checkpoint"))
}

/// `delete_checkpoint`
pub(super) fn delete_checkpoint(shared: &Shared, request: &Recorded) -> Reply {
    let reply = change(shared, request, |_| Ok(()));
    if let Ok(path) = checkpoint_path(request) {
        let mut state = shared.state();
        state
            .checkpoints
            .retain(|stored| stored.checkpoint.tinker_path != path);
    }
    reply
}

/// `publish_checkpoint` and `unpublish_checkpoint`
pub(super) fn publish(shared: &Shared, request: &Recorded, public: bool) -> Reply {
    change(shared, request, |checkpoint| {
        if checkpoint.public == public {
            let state = if public { "public" } else { "private" };
            return Err(refuse(409, &format!("the checkpoint is already {state}")));
        }
        checkpoint.public = public;
        Ok(())
    })
}

/// `set_checkpoint_ttl`
pub(super) fn set_checkpoint_ttl(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = SetCheckpointTtlRequest::decode(&request.body) else {
        return refuse(400, "not a time to live");
    };
    change(shared, request, |checkpoint| {
        if let Some(seconds) = body.ttl_seconds {
            check_ttl(seconds).map_err(|error| refuse(400, &error.to_string()))?;
        }
        let span = |seconds: u64| jiff::SignedDuration::from_secs(seconds.cast_signed());
        checkpoint.expires_at = body.ttl_seconds.map(|s| checkpoint.time + span(s));
        Ok(())
    })
}

fn newest_sessions(state: &State) -> Vec<(&SessionId, &Session)> {
    let mut sessions: Vec<_> = state.sessions.iter().collect();
    sessions.sort_by_key(|(_, session)| std::cmp::Reverse(session.created_at));
    sessions
}

/// `sessions`, newest first
pub(super) fn sessions(shared: &Shared, request: &Recorded) -> Reply {
    let state = shared.state();
    let sessions = newest_sessions(&state);
    let ids = sessions.into_iter().map(|(id, _)| id.clone()).collect();
    listed(page(ids, &request.query(), 20), |sessions, _| {
        ListSessionsResponse { sessions }
    })
}

/// `session`
pub(super) fn session(shared: &Shared, request: &Recorded) -> Reply {
    let (state, id) = (shared.state(), SessionId::from(request.ids[0].as_str()));
    let Some(session) = state.sessions.get(&id) else {
        return refuse(404, "no such session");
    };
    let models = state.models.keys();
    let samplers = state.samplers.keys();
    let models = models.filter(|model| model.session().is_some_and(|(owner, _)| owner == id));
    let samplers =
        samplers.filter(|sampler| sampler.session().is_some_and(|(owner, _)| owner == id));
    let mut info = SessionInfo::new(models.cloned().collect(), samplers.cloned().collect());
    info.user_metadata = session.user_metadata.clone();
    info.display_name = session.display_name.clone();
    Reply::json(&info)
}

/// `session_project`
pub(super) fn session_project(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = AssignSessionProjectRequest::decode(&request.body) else {
        return refuse(400, "no project");
    };
    let mut state = shared.state();
    match state.sessions.get_mut(&request.ids[0].as_str().into()) {
        Some(session) => {
            session.project_id = body.project_id;
            Reply::json(&json!({}))
        }
        None => refuse(404, "no such session"),
    }
}

/// `trace_export`: ready at once; a rule can make it wait.
pub(super) fn trace_export(shared: &Shared, request: &Recorded) -> Reply {
    let id = SessionId::from(request.ids[0].as_str());
    if !shared.state().sessions.contains_key(&id) {
        return refuse(404, "no such session");
    }
    let url = format!("http://{}/files/traces/{id}", shared.address);
    Reply::json(&TraceExport::ready(url))
}

/// `search_sessions`, newest first
pub(super) fn search_sessions(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(search) = SessionSearch::decode(&request.body) else {
        return refuse(400, "not a search");
    };
    if !(1..=200).contains(&search.limit) {
        return refuse(400, "limit must be 1 to 200");
    }
    let state = shared.state();
    let found = newest_sessions(&state).into_iter();
    let found = found.filter(|(id, session)| is_found(&search, id, session));
    let mut found: Vec<SessionSummary> = found
        .map(|(id, session)| state.summary(id, session))
        .collect();
    if let Some(cursor) = &search.cursor {
        let last = found
            .iter()
            .position(|s| s.session_id == cursor.last_session_id);
        found.drain(..last.map_or(0, |last| last + 1));
    }
    let more = found.len() > search.limit as usize;
    found.truncate(search.limit as usize);
    let next_cursor = found
        .last()
        .filter(|_| more)
        .map(|last| SearchCursor::new(last.created_at.to_string(), last.session_id.clone()));
    Reply::json(&SessionSearchPage::new(found, next_cursor))
}

fn is_found(search: &SessionSearch, id: &SessionId, session: &Session) -> bool {
    let named = |words: &String| {
        let name = session.display_name.clone().unwrap_or_default();
        let (name, words) = (name.to_lowercase(), words.to_lowercase());
        words.split_whitespace().all(|word| name.contains(word))
    };
    let wanted = match (&search.session_id, &search.display_name) {
        (None, None) => true,
        (wanted, words) => wanted.as_ref() == Some(id) || words.as_ref().is_some_and(named),
    };
    let in_project = |projects: &Vec<_>| projects.contains(&session.project_id);
    let labels = session.user_metadata.clone().unwrap_or_default();
    let labelled = |(name, value): (&String, &String)| labels.get(name) == Some(value);
    let in_state = |query: &StatusQuery| match (query, &session.finished) {
        (StatusQuery::Active, finished) => finished.is_none(),
        (StatusQuery::ClientFinished { reasons }, Some((reason, _))) => reasons
            .as_ref()
            .is_none_or(|reasons| reasons.contains(reason)),
        _ => false,
    };
    wanted
        && search.project_ids.as_ref().is_none_or(in_project)
        && search.user_metadata.iter().all(labelled)
        && search
            .statuses
            .as_ref()
            .is_none_or(|statuses| statuses.iter().any(in_state))
}
