use super::client::RestClient;
use super::pages::{Page, Pages, Window, by_offset};
use super::scoped::{Scoped, scope};
use crate::Error;
use crate::connection::call::Call;
use crate::training::BoxFuture;
use std::future::IntoFuture;
use tinkrs_types::session::AccessScope;
use tinkrs_types::{ModelId, ProjectId, TinkerPath};
use tinkrs_wire::endpoint;

pub use tinkrs_types::rest::{TrainingRun, TrainingRunPage};

const PAGE: u64 = 100;

/// A page of training runs that has been described but not fetched. Await it to fetch it.
#[derive(Clone, Debug)]
#[must_use = "nothing is fetched until this is awaited"]
pub struct ListTrainingRuns {
    client: RestClient,
    window: Window,
    access: AccessScope,
    project: Option<ProjectId>,
}

impl ListTrainingRuns {
    /// Sets the most runs of the page. The default is 20.
    pub fn limit(mut self, limit: u64) -> Self {
        self.window.limit = limit;
        self
    }

    /// Leaves out the first runs. The default is 0.
    pub fn offset(mut self, offset: u64) -> Self {
        self.window.offset = offset;
        self
    }

    /// Sets whose runs to list. The default is [`AccessScope::Owned`].
    pub fn access_scope(mut self, access: AccessScope) -> Self {
        self.access = access;
        self
    }

    /// Lists the runs of one project only.
    pub fn project_id(mut self, project: impl Into<ProjectId>) -> Self {
        self.project = Some(project.into());
        self
    }

    /// Lists all such runs from the offset on, fetching pages as they are needed. The limit is the size of
    /// a page, and 100 at least.
    pub fn all(mut self) -> Pages<TrainingRun> {
        self.window.limit = self.window.limit.max(PAGE);
        Pages::new(Box::new(move || self.page()))
    }

    fn page(self) -> BoxFuture<Result<Page<TrainingRun>, Error>> {
        Box::pin(async move {
            let offset = self.window.offset;
            let page = self.clone().fetch().await?;
            let total = Some(page.cursor.total_count);
            Ok(by_offset(
                offset,
                page.training_runs,
                total,
                move |offset| self.offset(offset).page(),
            ))
        })
    }

    async fn fetch(self) -> Result<TrainingRunPage, Error> {
        let project = self.project.as_ref().map(ProjectId::as_str);
        let project = project.map(|project| ("project_id", project.into()));
        let query = self.window.query().into_iter().chain(scope(self.access));
        let query = query.chain(project);
        let call = Call::new(&endpoint::LIST_TRAINING_RUNS).query(query);
        self.client.json(call).await
    }
}

impl IntoFuture for ListTrainingRuns {
    type Output = Result<TrainingRunPage, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.fetch())
    }
}

impl RestClient {
    /// Asks about a training run.
    pub fn get_training_run(&self, id: &ModelId) -> Scoped<TrainingRun> {
        Scoped::new(self, Call::at(&endpoint::GET_TRAINING_RUN, id))
    }

    /// Asks about the training run that a checkpoint belongs to.
    pub fn get_training_run_by_tinker_path(&self, path: &TinkerPath) -> Scoped<TrainingRun> {
        let call = Call::at(&endpoint::GET_TRAINING_RUN, path.run());
        Scoped::new(self, call.named("get_training_run_by_tinker_path"))
    }

    /// Lists a page of training runs, newest first.
    pub fn list_training_runs(&self) -> ListTrainingRuns {
        ListTrainingRuns {
            client: self.clone(),
            window: Window::new(20),
            access: AccessScope::Owned,
            project: None,
        }
    }

    /// Lists all of one's own training runs, fetching pages as they are needed.
    /// [`ListTrainingRuns::all`] does so for others.
    pub fn all_training_runs(&self) -> Pages<TrainingRun> {
        self.list_training_runs().all()
    }
}
