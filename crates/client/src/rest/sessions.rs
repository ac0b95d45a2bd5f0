use super::client::RestClient;
use super::pages::{Fetch, Page, Pages, Window, by_offset};
use super::scoped::{Scoped, scope};
use crate::Error;
use crate::connection::call::Call;
use crate::training::BoxFuture;
use std::future::IntoFuture;
use std::time::Duration;
use tinkrs_types::session::{TraceExport, TraceStatus};
use tinkrs_types::{InvalidInput, ProjectId, SessionId};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::assign_session_project::AssignSessionProjectRequest;
use tinkrs_wire::op::list_sessions::ListSessionsResponse;

pub use tinkrs_types::session::{
    AccessScope, FailureCategory, FailureReason, SearchCursor, SearchOwner, SessionInfo,
    SessionSearch, SessionSearchPage, SessionStatus, SessionSummary, StatusQuery,
};

const PAGE: u64 = 100;
const TRACE_POLL: Duration = Duration::from_secs(5);

/// A page of sessions that has been described but not fetched. Await it to fetch it.
#[derive(Clone, Debug)]
#[must_use = "nothing is fetched until this is awaited"]
pub struct ListSessions {
    client: RestClient,
    window: Window,
    access: AccessScope,
}

impl ListSessions {
    /// Sets the most sessions of the page. The default is 20.
    pub fn limit(mut self, limit: u64) -> Self {
        self.window.limit = limit;
        self
    }

    /// Leaves out the first sessions. The default is 0.
    pub fn offset(mut self, offset: u64) -> Self {
        self.window.offset = offset;
        self
    }

    /// Sets whose sessions to list. The default is [`AccessScope::Owned`].
    pub fn access_scope(mut self, access: AccessScope) -> Self {
        self.access = access;
        self
    }

    /// Lists all such sessions from the offset on, fetching pages as they are needed. The limit is the size
    /// of a page, and 100 at least.
    pub fn all(mut self) -> Pages<SessionId> {
        self.window.limit = self.window.limit.max(PAGE);
        Pages::new(Box::new(move || self.page()))
    }

    fn page(self) -> BoxFuture<Result<Page<SessionId>, Error>> {
        Box::pin(async move {
            let offset = self.window.offset;
            let sessions = self.clone().fetch().await?;
            Ok(by_offset(offset, sessions, None, move |offset| {
                self.offset(offset).page()
            }))
        })
    }

    async fn fetch(self) -> Result<Vec<SessionId>, Error> {
        let query = self.window.query().into_iter().chain(scope(self.access));
        let call = Call::new(&endpoint::LIST_SESSIONS).query(query);
        let listed: ListSessionsResponse = self.client.json(call).await?;
        Ok(listed.sessions)
    }
}

impl IntoFuture for ListSessions {
    type Output = Result<Vec<SessionId>, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.fetch())
    }
}

impl RestClient {
    /// Asks what a session holds.
    pub fn get_session(&self, id: &SessionId) -> Scoped<SessionInfo> {
        Scoped::new(self, Call::at(&endpoint::GET_SESSION, id))
    }

    /// Lists a page of one's own sessions, newest first.
    pub fn list_sessions(&self) -> ListSessions {
        ListSessions {
            client: self.clone(),
            window: Window::new(20),
            access: AccessScope::Owned,
        }
    }

    /// Lists all of one's own sessions, fetching pages as they are needed. [`ListSessions::all`] does so for
    /// others.
    pub fn all_sessions(&self) -> Pages<SessionId> {
        self.list_sessions().all()
    }

    /// Finds a page of sessions, newest first. The service calls this experimental.
    ///
    /// # Errors
    /// If the limit is not from 1 to 200, or the server cannot be asked.
    pub async fn search_sessions(
        &self,
        search: &SessionSearch,
    ) -> Result<SessionSearchPage, Error> {
        if !(1..=200).contains(&search.limit) {
            return Err(InvalidInput::new("limit", search.limit, "1 to 200").into());
        }
        self.json(Call::new(&endpoint::SEARCH_SESSIONS).json(search))
            .await
    }

    /// Finds all sessions, fetching pages as they are needed.
    pub fn all_found_sessions(&self, search: SessionSearch) -> Pages<SessionSummary> {
        let client = self.clone();
        Pages::new(Box::new(move || client.found_from(search)))
    }

    fn found_from(self, search: SessionSearch) -> BoxFuture<Result<Page<SessionSummary>, Error>> {
        Box::pin(async move {
            let page = self.search_sessions(&search).await?;
            let next = page.next_cursor.map(|cursor| {
                let search = SessionSearch {
                    cursor: Some(cursor),
                    ..search
                };
                Box::new(move || self.found_from(search)) as Fetch<SessionSummary>
            });
            Ok(Page {
                items: page.sessions,
                next,
            })
        })
    }

    /// Moves a session to a project.
    ///
    /// # Errors
    /// If there is no such session or project, or the server cannot be asked.
    pub async fn assign_session_project(
        &self,
        id: &SessionId,
        project: ProjectId,
    ) -> Result<(), Error> {
        let call =
            Call::at(&endpoint::ASSIGN_SESSION_PROJECT, id).json(&AssignSessionProjectRequest {
                project_id: project,
            });
        self.done(call).await
    }

    /// Exports a session's trace and waits for it. The result is a link to a Perfetto file.
    ///
    /// # Errors
    /// If the export fails or the server cannot be asked.
    pub async fn export_session_trace(&self, id: &SessionId) -> Result<String, Error> {
        const NAME: &str = "export_session_trace";
        loop {
            let export: TraceExport = self
                .json(Call::at(&endpoint::EXPORT_SESSION_TRACE, id))
                .await?;
            match export.status {
                TraceStatus::Pending => tokio::time::sleep(TRACE_POLL).await,
                TraceStatus::Ready => {
                    return export
                        .url
                        .ok_or_else(|| Error::answer(NAME, "ready, but without a link"));
                }
                TraceStatus::Failed => {
                    let reason = export
                        .error
                        .unwrap_or_else(|| "the server gave no reason".to_owned());
                    return Err(Error::answer(NAME, format!("the export failed: {reason}")));
                }
            }
        }
    }
}
