use super::client::RestClient;
use super::pages::{Page, Pages, Window, by_offset};
use crate::Error;
use crate::connection::call::Call;
use crate::training::BoxFuture;
use std::borrow::Cow;
use std::future::IntoFuture;
use tinkrs_types::session::AccessScope;
use tinkrs_types::{ModelId, TinkerPath};
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

    async fn fetch(self) -> Result<TrainingRunPage, Error> {
        let query = self.window.query().into_iter().chain(scope(self.access));
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
    ///
    /// # Errors
    /// If there is no such run or the server cannot be asked.
    pub async fn get_training_run(&self, id: &ModelId) -> Result<TrainingRun, Error> {
        let call = Call::at(&endpoint::GET_TRAINING_RUN, id).query(scope(AccessScope::Owned));
        self.json(call).await
    }

    /// Asks about the training run that a checkpoint belongs to.
    ///
    /// # Errors
    /// If there is no such run or the server cannot be asked.
    pub async fn get_training_run_by_tinker_path(
        &self,
        path: &TinkerPath,
    ) -> Result<TrainingRun, Error> {
        let call = Call::at(&endpoint::GET_TRAINING_RUN, path.run())
            .named("get_training_run_by_tinker_path")
            .query(scope(AccessScope::Owned));
        self.json(call).await
    }

    /// Lists a page of training runs, newest first.
    pub fn list_training_runs(&self) -> ListTrainingRuns {
        ListTrainingRuns {
            client: self.clone(),
            window: Window::new(20),
            access: AccessScope::Owned,
        }
    }

    /// Lists all of one's own training runs, fetching pages as they are needed.
    pub fn all_training_runs(&self) -> Pages<TrainingRun> {
        let client = self.clone();
        Pages::new(Box::new(move || client.runs_from(0)))
    }

    fn runs_from(self, offset: u64) -> BoxFuture<Result<Page<TrainingRun>, Error>> {
        Box::pin(async move {
            let page = self.list_training_runs().limit(PAGE).offset(offset).await?;
            let total = Some(page.cursor.total_count);
            Ok(by_offset(
                offset,
                page.training_runs,
                total,
                move |offset| self.runs_from(offset),
            ))
        })
    }
}

pub(super) fn scope(access: AccessScope) -> [(&'static str, Cow<'static, str>); 1] {
    [("access_scope", access.name().into())]
}
