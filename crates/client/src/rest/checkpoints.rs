use super::client::RestClient;
use super::pages::{Page, Pages, Window, by_offset};
use crate::connection::call::Call;
use crate::connection::policy::Policy;
use crate::training::BoxFuture;
use crate::{Error, ttl};
use std::future::IntoFuture;
use std::time::Duration;
use tinkrs_types::{CheckpointKind, ModelId, TinkerPath};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::set_checkpoint_ttl::SetCheckpointTtlRequest;
use tinkrs_wire::op::weights_info::WeightsInfoRequest;

pub use tinkrs_types::rest::{
    Checkpoint, CheckpointPage, Cursor, ExternalWeightsUrls, WeightsInfo,
};

/// The size of a page, unless another is asked for.
const PAGE: u64 = 100;
/// The size of a page of a stream, as the official client has it.
const STREAM_PAGE: u64 = 1_000;

/// A page of checkpoints that has been described but not fetched. Await it to fetch it.
#[derive(Clone, Debug)]
#[must_use = "nothing is fetched until this is awaited"]
pub struct ListUserCheckpoints {
    client: RestClient,
    window: Window,
}

impl ListUserCheckpoints {
    /// Sets the most checkpoints of the page. The default is 100.
    pub fn limit(mut self, limit: u64) -> Self {
        self.window.limit = limit;
        self
    }

    /// Leaves out the first checkpoints. The default is 0.
    pub fn offset(mut self, offset: u64) -> Self {
        self.window.offset = offset;
        self
    }

    async fn fetch(self) -> Result<CheckpointPage, Error> {
        let call = Call::new(&endpoint::LIST_USER_CHECKPOINTS);
        self.client.json(call.query(self.window.query())).await
    }
}

impl IntoFuture for ListUserCheckpoints {
    type Output = Result<CheckpointPage, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.fetch())
    }
}

impl RestClient {
    /// Lists all checkpoints of a training run.
    ///
    /// # Errors
    /// If there is no such run or the server cannot be asked.
    pub async fn list_checkpoints(&self, run: &ModelId) -> Result<Vec<Checkpoint>, Error> {
        let call = Call::at(&endpoint::LIST_CHECKPOINTS, run);
        let page: CheckpointPage = self.json(call).await?;
        Ok(page.checkpoints)
    }

    /// Lists a page of one's checkpoints over all runs, newest first.
    pub fn list_user_checkpoints(&self) -> ListUserCheckpoints {
        ListUserCheckpoints {
            client: self.clone(),
            window: Window::new(PAGE),
        }
    }

    /// Lists all of one's checkpoints over all runs, fetching pages as they are needed.
    pub fn all_user_checkpoints(&self) -> Pages<Checkpoint> {
        let client = self.clone();
        Pages::new(Box::new(move || client.checkpoints_from(0)))
    }

    fn checkpoints_from(self, offset: u64) -> BoxFuture<Result<Page<Checkpoint>, Error>> {
        Box::pin(async move {
            let page = self
                .list_user_checkpoints()
                .limit(STREAM_PAGE)
                .offset(offset)
                .await?;
            let total = page.cursor.map(|cursor| cursor.total_count);
            Ok(by_offset(offset, page.checkpoints, total, move |offset| {
                self.checkpoints_from(offset)
            }))
        })
    }

    /// Asks about the weights of a checkpoint, which may be another account's public one.
    ///
    /// # Errors
    /// If there is no such checkpoint or the server cannot be asked.
    pub async fn get_weights_info_by_tinker_path(
        &self,
        path: &TinkerPath,
    ) -> Result<WeightsInfo, Error> {
        let request = WeightsInfoRequest {
            tinker_path: path.to_string(),
        };
        self.json(
            Call::new(&endpoint::WEIGHTS_INFO)
                .named("get_weights_info_by_tinker_path")
                .json(&request),
        )
        .await
    }

    /// Deletes a checkpoint.
    ///
    /// # Errors
    /// If there is no such checkpoint or the server cannot be asked.
    #[doc(alias = "delete_checkpoint_from_tinker_path")]
    pub async fn delete_checkpoint(&self, path: &TinkerPath) -> Result<(), Error> {
        let call = Call::at(&endpoint::DELETE_CHECKPOINT, path)
            .named("delete_checkpoint_from_tinker_path");
        self.done(call).await
    }

    /// Lets everybody read a checkpoint.
    ///
    /// # Errors
    /// If it is public already (status 409, which is not retried), if there is no such
    /// checkpoint, or if the server cannot be asked.
    #[doc(alias = "publish_checkpoint_from_tinker_path")]
    pub async fn publish_checkpoint(&self, path: &TinkerPath) -> Result<(), Error> {
        let call = Call::at(&endpoint::PUBLISH_CHECKPOINT, path)
            .named("publish_checkpoint_from_tinker_path")
            .policy(Policy::FIVE_MINUTES.conflict_is_final());
        self.done(call).await
    }

    /// Takes back that everybody may read a checkpoint.
    ///
    /// # Errors
    /// If it is not public (status 409, which is not retried), if there is no such checkpoint,
    /// or if the server cannot be asked.
    #[doc(alias = "unpublish_checkpoint_from_tinker_path")]
    pub async fn unpublish_checkpoint(&self, path: &TinkerPath) -> Result<(), Error> {
        let call = Call::at(&endpoint::UNPUBLISH_CHECKPOINT, path)
            .named("unpublish_checkpoint_from_tinker_path")
            .policy(Policy::FIVE_MINUTES.conflict_is_final());
        self.done(call).await
    }

    /// Says how long from now a checkpoint is kept; `None` means for ever.
    ///
    /// # Errors
    /// If the time is not whole seconds, shorter than an hour or longer than ten years, if there
    /// is no such checkpoint, or if the server cannot be asked.
    #[doc(alias = "set_checkpoint_ttl_from_tinker_path")]
    pub async fn set_checkpoint_ttl(
        &self,
        path: &TinkerPath,
        ttl: Option<Duration>,
    ) -> Result<(), Error> {
        let ttl_seconds = ttl::seconds(ttl)?;
        let call = Call::at(&endpoint::SET_CHECKPOINT_TTL, path)
            .named("set_checkpoint_ttl_from_tinker_path")
            .json(&SetCheckpointTtlRequest { ttl_seconds });
        self.done(call).await
    }

    /// Asks where the files of an external checkpoint can be downloaded.
    ///
    /// # Errors
    /// If the path is not an external checkpoint's, or the server cannot be asked.
    pub async fn get_external_weights_urls(
        &self,
        path: &TinkerPath,
    ) -> Result<ExternalWeightsUrls, Error> {
        path.require(CheckpointKind::External)?;
        self.json(Call::at(&endpoint::GET_EXTERNAL_WEIGHTS_URLS, path))
            .await
    }
}
