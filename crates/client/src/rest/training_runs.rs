use super::client::RestClient;
use super::pages::{Page, Pages, by_offset};
use crate::Error;
use crate::connection::call::Call;
use crate::training::BoxFuture;
use std::borrow::Cow;
use tinkrs_types::rest::{TrainingRun, TrainingRunPage};
use tinkrs_types::session::AccessScope;
use tinkrs_types::{ModelId, TinkerPath};
use tinkrs_wire::endpoint;

const PAGE: u64 = 100;

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

    /// Lists a page of one's own training runs, newest first.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn list_training_runs(
        &self,
        limit: u64,
        offset: u64,
    ) -> Result<TrainingRunPage, Error> {
        self.list_training_runs_in(limit, offset, AccessScope::Owned)
            .await
    }

    /// Lists a page of training runs, one's own or all that one may read.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn list_training_runs_in(
        &self,
        limit: u64,
        offset: u64,
        access: AccessScope,
    ) -> Result<TrainingRunPage, Error> {
        let page = [
            ("limit", limit.to_string().into()),
            ("offset", offset.to_string().into()),
        ];
        let call =
            Call::new(&endpoint::LIST_TRAINING_RUNS).query(page.into_iter().chain(scope(access)));
        self.json(call).await
    }

    /// Lists all of one's own training runs, fetching pages as they are needed.
    pub fn all_training_runs(&self) -> Pages<TrainingRun> {
        let client = self.clone();
        Pages::new(Box::new(move || client.runs_from(0)))
    }

    fn runs_from(self, offset: u64) -> BoxFuture<Result<Page<TrainingRun>, Error>> {
        Box::pin(async move {
            let page = self.list_training_runs(PAGE, offset).await?;
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
