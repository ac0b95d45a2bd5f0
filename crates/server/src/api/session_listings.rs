//! Finding sessions again.

use std::collections::{BTreeSet, HashMap};

use axum::extract::State;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tinkrs_types::SessionId;
use tinkrs_types::session::{
    SearchCursor, SearchOwner, SessionInfo, SessionSearch, SessionSearchPage, SessionStatus,
    SessionSummary, StatusQuery,
};
use tinkrs_wire::op::assign_session_project::AssignSessionProjectRequest;
use tinkrs_wire::op::list_sessions::ListSessionsResponse;
use tinkrs_wire::query::{PageQuery, ScopeQuery};

use super::listings::cut;
use super::{PROJECT, Plain, check_project};
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Decoded, InPath, Parameters};
use crate::registry::records::SessionRecord;

pub(crate) async fn list(
    State(server): State<Server>,
    Caller(owner): Caller,
    Parameters(page): Parameters<PageQuery>,
) -> Result<Plain<ListSessionsResponse>, ApiError> {
    let sessions = server.sessions(owner)?;
    let sessions = sessions.into_iter().map(|session| session.id).collect();
    let (sessions, _) = cut(&page, sessions, 20)?;
    Ok(Plain(ListSessionsResponse { sessions }))
}

pub(crate) async fn describe(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(id): InPath<String>,
    _: Parameters<ScopeQuery>,
) -> Result<Plain<SessionInfo>, ApiError> {
    server.session_info(owner, &id.into()).map(Plain)
}

pub(crate) async fn search(
    State(server): State<Server>,
    Caller(owner): Caller,
    Decoded(search): Decoded<SessionSearch>,
) -> Result<Plain<SessionSearchPage>, ApiError> {
    server.search_sessions(owner, &search).map(Plain)
}

/// There is one project, and every session is in it.
pub(crate) async fn assign_project(
    State(server): State<Server>,
    Caller(owner): Caller,
    InPath(id): InPath<String>,
    Decoded(request): Decoded<AssignSessionProjectRequest>,
) -> Result<Plain<Map<String, Value>>, ApiError> {
    server.registry().session(owner, &id.into())?;
    check_project(request.project_id.as_str())?;
    Ok(Plain(Map::new()))
}

impl Server {
    /// Lists an owner's sessions, newest first.
    pub(super) fn sessions(&self, owner: Owner) -> Result<Vec<SessionRecord>, ApiError> {
        let stored = self.shared().store.sessions_of(owner)?;
        let stored = stored
            .into_iter()
            .map(|session| (session.id.clone(), session));
        let mut sessions: HashMap<_, _> = stored.collect();
        // What is in memory is newer, or not stored yet.
        let registry = self.registry();
        let known = registry.sessions.values().map(|session| &session.record);
        let own = known.filter(|session| session.owner == owner).cloned();
        sessions.extend(own.map(|session| (session.id.clone(), session)));
        drop(registry);
        let mut sessions: Vec<_> = sessions.into_values().collect();
        sessions.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        Ok(sessions)
    }

    pub(super) fn session_info(
        &self,
        owner: Owner,
        id: &SessionId,
    ) -> Result<SessionInfo, ApiError> {
        let stored = self.shared().store.members_of(id)?;
        let mut registry = self.registry();
        let record = registry.session(owner, id)?.record.clone();
        let runs = registry.runs.values().map(|run| &run.record);
        let samplers = registry.samplers.values().map(|sampler| &sampler.record);
        let runs = runs
            .filter(|run| run.session == *id)
            .map(|run| run.id.clone());
        let samplers = samplers.filter(|sampler| sampler.session == *id);
        let samplers = samplers.map(|sampler| sampler.id.clone());
        let runs: BTreeSet<_> = runs.chain(stored.0).collect();
        let samplers: BTreeSet<_> = samplers.chain(stored.1).collect();
        let (runs, samplers) = (runs.into_iter().collect(), samplers.into_iter().collect());
        let mut info = SessionInfo::new(runs, samplers);
        info.user_metadata = Some(record.user_metadata);
        info.display_name = record.display_name;
        Ok(info)
    }

    fn search_sessions(
        &self,
        owner: Owner,
        search: &SessionSearch,
    ) -> Result<SessionSearchPage, ApiError> {
        if !(1..=200).contains(&search.limit) {
            return Err(ApiError::bad_request(format!(
                "`limit`: found {}, expected 1 to 200",
                search.limit
            )));
        }
        if search.statuses.as_ref().is_some_and(Vec::is_empty) {
            return Err(ApiError::bad_request(
                "`statuses`: found none, expected at least one",
            ));
        }
        if search.display_name.as_deref().is_some_and(str::is_empty) {
            return Err(ApiError::bad_request(
                "`display_name`: expected a text that is not empty",
            ));
        }
        if let SearchOwner::User { owner_urns } = &search.owner
            && !(1..=10).contains(&owner_urns.len())
        {
            return Err(ApiError::bad_request(format!(
                "`owner.owner_urns`: found {}, expected 1 to 10",
                owner_urns.len()
            )));
        }
        for project in search.project_ids.iter().flatten() {
            check_project(project.as_str())?;
        }
        let is_asked_for = match &search.owner {
            SearchOwner::Own | SearchOwner::Accessible => true,
            SearchOwner::User { owner_urns } => owner_urns.contains(&owner.to_string()),
        };
        let after = search.cursor.as_ref().map(read_cursor).transpose()?;
        let sessions = self.sessions(owner)?.into_iter();
        let sessions = sessions
            .filter(|session| is_asked_for && matches(session, search))
            .filter(|session| {
                let place = (session.created_at, &session.id);
                after.as_ref().is_none_or(|(time, id)| place < (*time, id))
            });
        let limit = search.limit as usize;
        let mut found: Vec<_> = sessions.take(limit + 1).collect();
        let has_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| has_more);
        let next_cursor = last
            .map(|session| SearchCursor::new(session.created_at.to_string(), session.id.clone()));
        let sessions = found.into_iter().map(|session| self.summarize(session));
        Ok(SessionSearchPage::new(sessions.collect(), next_cursor))
    }

    fn summarize(&self, session: SessionRecord) -> SessionSummary {
        let checkpoints = &self.shared().checkpoints;
        let checkpoints = checkpoints.of_session(session.owner, &session.id);
        let bytes = checkpoints.iter().filter_map(|c| c.size_bytes).sum();
        let owner = session.owner.to_string();
        let mut summary =
            SessionSummary::new(session.id, owner, PROJECT.into(), session.created_at);
        summary.checkpoints_count = checkpoints.len() as u64;
        summary.status = Some(session.status);
        summary.display_name = session.display_name;
        summary.user_metadata = Some(session.user_metadata);
        summary.checkpoint_storage_bytes = Some(bytes);
        summary
    }
}

fn read_cursor(cursor: &SearchCursor) -> Result<(Timestamp, SessionId), ApiError> {
    let time = cursor.last_created_at.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "`cursor.last_created_at`: found `{}`, expected the `next_cursor` of a page",
            cursor.last_created_at
        ))
    })?;
    Ok((time, cursor.last_session_id.clone()))
}

fn matches(session: &SessionRecord, search: &SessionSearch) -> bool {
    let has_name = |wanted: &String| {
        let name = session
            .display_name
            .as_deref()
            .unwrap_or_default()
            .to_lowercase();
        let wanted = wanted.to_lowercase();
        wanted.split_whitespace().all(|word| name.contains(word))
    };
    let by_id = search.session_id.as_ref().map(|id| *id == session.id);
    let by_name = search.display_name.as_ref().map(has_name);
    let is_named = match (by_id, by_name) {
        (None, None) => true,
        (by_id, by_name) => by_id == Some(true) || by_name == Some(true),
    };
    let mut labels = search.user_metadata.iter();
    let has_labels = labels.all(|(name, value)| session.user_metadata.get(name) == Some(value));
    let statuses = search.statuses.as_ref();
    let has_status = statuses.is_none_or(|s| s.iter().any(|s| is_in(&session.status, s)));
    is_named && has_labels && has_status
}

fn is_in(status: &SessionStatus, query: &StatusQuery) -> bool {
    match (status, query) {
        (SessionStatus::Active, StatusQuery::Active)
        | (SessionStatus::Cancelled { .. }, StatusQuery::Cancelled)
        | (SessionStatus::Failed { .. }, StatusQuery::Failed) => true,
        (SessionStatus::ClientFinished { reason, .. }, StatusQuery::ClientFinished { reasons }) => {
            reasons
                .as_ref()
                .is_none_or(|reasons| reasons.contains(reason))
        }
        _ => false,
    }
}
