use super::client::RestClient;
use crate::auth::Secret;
use crate::connection::call::Call;
use crate::training::BoxFuture;
use crate::{Error, ttl};
use http::header::HeaderValue;
use std::future::IntoFuture;
use std::time::Duration;
use tinkrs_types::rest::CopiedWeights;
use tinkrs_types::{CheckpointKind, CheckpointRef, InvalidInput, ProjectId, TinkerPath};
use tinkrs_wire::op::copy_weights::CopyWeightsRequest;
use tinkrs_wire::{endpoint, header};

/// A copy that has been described but not made. Await it to make it.
#[derive(Clone, Debug)]
#[must_use = "nothing is copied until this is awaited"]
pub struct CopyWeights {
    client: RestClient,
    source: CheckpointRef,
    project: Option<ProjectId>,
    ttl: Option<Duration>,
    access_token: Option<Secret>,
}

impl RestClient {
    /// Copies a checkpoint to a project. The result is the copy's path.
    ///
    /// The copy shares storage with its source and lives in a run of its own, which cannot be
    /// trained. The source is a [`TinkerPath`], or a [`CheckpointRef`] such as `my-run@120`, of which the weights to
    /// train on are copied if there are some.
    pub fn copy_weights(&self, source: impl Into<CheckpointRef>) -> CopyWeights {
        CopyWeights {
            client: self.clone(),
            source: source.into(),
            project: None,
            ttl: None,
            access_token: None,
        }
    }
}

impl CopyWeights {
    /// Sets the project to copy to. The default is the client's own, else `TINKER_PROJECT_ID`.
    pub fn to_project(mut self, project: impl Into<ProjectId>) -> Self {
        self.project = Some(project.into());
        self
    }

    /// Deletes the copy after this long: an hour to ten years. The default is never.
    #[doc(alias = "ttl_seconds")]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Reads another account's checkpoint with that account's credential.
    pub fn weights_access_token(mut self, token: impl Into<Secret>) -> Self {
        self.access_token = Some(token.into());
        self
    }

    async fn copy(self) -> Result<TinkerPath, Error> {
        let ttl_seconds = ttl::seconds(self.ttl)?;
        let project = self
            .project
            .or_else(|| self.client.service().inner.options.project_id());
        let allowed = "a project: name one, or set `TINKER_PROJECT_ID`";
        let project = project.ok_or_else(|| InvalidInput::new("project", "nothing", allowed))?;
        let kinds = [CheckpointKind::Training, CheckpointKind::Sampler];
        let source = self.client.resolve_checkpoint(&self.source, &kinds).await?;
        let request = CopyWeightsRequest {
            source_path: source.to_string(),
            destination_project_id: Some(project),
            session_id: None,
            model_seq_id: None,
            ttl_seconds,
            weights_access_token: None,
        };
        let key = HeaderValue::from_str(&crate::uuid::v4()).expect("a UUID is plain text");
        let mut call = Call::new(&endpoint::COPY_WEIGHTS)
            .json(&request)
            .header(header::IDEMPOTENCY_KEY, key);
        if let Some(token) = self.access_token {
            call = call.header(header::WEIGHTS_ACCESS_TOKEN, token.to_header()?);
        }
        let copied: CopiedWeights = self.client.json(call).await?;
        Ok(copied.tinker_path)
    }
}

impl IntoFuture for CopyWeights {
    type Output = Result<TinkerPath, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.copy())
    }
}
