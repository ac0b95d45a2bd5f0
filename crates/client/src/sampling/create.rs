//! Opening a model or a checkpoint for sampling.

use super::client::{SamplerOptions, SamplingClient};
use super::retry::RetryConfig;
use crate::connection::call::Call;
use crate::connection::policy::Policy;
use crate::session::Session;
use crate::training::BoxFuture;
use crate::{Error, ServiceClient, TrainingClient};
use std::future::IntoFuture;
use std::sync::Arc;
use tinkrs_types::{CheckpointKind, CheckpointRef, InvalidInput, SamplingSessionId, TinkerPath};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::create_sampling_session::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse,
};

const NAME: &str = "create_sampling_client";

/// A sampler that has been described but not opened. Await it to open it.
#[derive(Clone, Debug)]
#[must_use = "nothing is opened until this is awaited"]
pub struct CreateSamplingClient {
    home: Home,
    source: Source,
    options: SamplerOptions,
}

#[derive(Clone, Debug)]
enum Source {
    New(SampleFrom),
    /// A sampling session that is there already.
    Existing(SamplingSessionId),
}

/// Where the session comes from.
#[derive(Clone, Debug)]
enum Home {
    Service(ServiceClient),
    Session(Arc<Session>),
}

/// What to sample from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleFrom {
    /// A base model, by name.
    BaseModel(String),
    /// A checkpoint that was saved for sampling.
    Checkpoint(TinkerPath),
    /// A checkpoint by the name of its run, such as `my-run@120`.
    Named(CheckpointRef),
}

impl From<CheckpointRef> for SampleFrom {
    fn from(checkpoint: CheckpointRef) -> Self {
        Self::Named(checkpoint)
    }
}

impl From<TinkerPath> for SampleFrom {
    fn from(path: TinkerPath) -> Self {
        Self::Checkpoint(path)
    }
}

impl From<&str> for SampleFrom {
    fn from(base_model: &str) -> Self {
        Self::BaseModel(base_model.to_owned())
    }
}

impl From<String> for SampleFrom {
    fn from(base_model: String) -> Self {
        Self::BaseModel(base_model)
    }
}

impl ServiceClient {
    /// Opens a base model (by name) or a checkpoint (by path, or by the name of its run) for sampling.
    ///
    /// ```no_run
    /// # async fn example(service: tinkrs::ServiceClient) -> Result<(), tinkrs::Error> {
    /// let tuned: tinkrs::CheckpointRef = "my-run@latest".parse()?;
    /// let sampling = service.create_sampling_client(tuned).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_sampling_client(&self, source: impl Into<SampleFrom>) -> CreateSamplingClient {
        CreateSamplingClient {
            home: Home::Service(self.clone()),
            source: Source::New(source.into()),
            options: SamplerOptions::default(),
        }
    }
}

impl ServiceClient {
    /// Returns a client of a sampling session that is there already, as a further client of it.
    ///
    /// Nothing is asked of the server but a session of this client's own, if it has none: that the
    /// sampling session is there shows with the first sample. [`SamplingClient::to_handle`] carries more
    /// between processes: address, headers and settings.
    pub fn attach_sampling_client(&self, id: impl Into<SamplingSessionId>) -> CreateSamplingClient {
        CreateSamplingClient {
            home: Home::Service(self.clone()),
            source: Source::Existing(id.into()),
            options: SamplerOptions::default(),
        }
    }
}

impl TrainingClient {
    /// Opens a checkpoint of this session, or any other, for sampling. The name of a run is left to the server here:
    /// `tinkrs serve` knows it.
    pub fn create_sampling_client(&self, source: impl Into<SampleFrom>) -> CreateSamplingClient {
        CreateSamplingClient {
            home: Home::Session(Arc::clone(&self.inner.session)),
            source: Source::New(source.into()),
            options: SamplerOptions::default(),
        }
    }
}

impl CreateSamplingClient {
    /// Records with every sample what the loss `stable_reinforce` needs. The default is not to.
    pub fn record_stability_info(mut self, record: bool) -> Self {
        self.options.record_stability_info = record;
        self
    }

    /// Sets how whole samples are retried.
    pub fn retry_config(mut self, retry: RetryConfig) -> Self {
        self.options.retry = retry;
        self
    }

    async fn create(self) -> Result<SamplingClient, Error> {
        match self.source {
            Source::New(source) => create(self.home, source, self.options).await,
            Source::Existing(id) => {
                let session = self.home.session("attach_sampling_client").await?;
                Ok(SamplingClient::cloned(session, id, self.options))
            }
        }
    }
}

impl Home {
    /// Finds the path of a checkpoint to sample from.
    async fn find(&self, checkpoint: CheckpointRef) -> Result<String, Error> {
        const KIND: CheckpointKind = CheckpointKind::Sampler;
        match (checkpoint.path(), self) {
            (Some(path), _) => {
                path.require(KIND)?;
                Ok(path.to_string())
            }
            (None, Self::Service(service)) => {
                let rest = service.create_rest_client();
                let path = rest.resolve_checkpoint(&checkpoint, &[KIND]).await?;
                Ok(path.to_string())
            }
            (None, Self::Session(_)) => Ok(format!("tinker://{checkpoint}")),
        }
    }

    async fn session(self, operation: &'static str) -> Result<Arc<Session>, Error> {
        match self {
            Self::Service(service) => service.session(operation).await,
            Self::Session(session) => Ok(session),
        }
    }
}

async fn create(
    home: Home,
    source: SampleFrom,
    options: SamplerOptions,
) -> Result<SamplingClient, Error> {
    let (base_model, model_path) = match source {
        SampleFrom::BaseModel(name) if name.starts_with("tinker://") => {
            (None, Some(name.parse::<CheckpointRef>()?))
        }
        SampleFrom::BaseModel(name) if name.is_empty() => {
            return Err(
                InvalidInput::new("base_model", "an empty name", "the name of a model").into(),
            );
        }
        SampleFrom::BaseModel(name) => (Some(name), None),
        SampleFrom::Checkpoint(path) => (None, Some(path.into())),
        SampleFrom::Named(checkpoint) => (None, Some(checkpoint)),
    };
    let model_path = match model_path {
        Some(checkpoint) => Some(home.find(checkpoint).await?),
        None => None,
    };
    let session = home.session(NAME).await?;
    let request = CreateSamplingSessionRequest {
        session_id: session.id.clone(),
        sampling_session_seq_id: session.next_sampler(),
        base_model,
        model_path,
    };
    let call = Call::new(&endpoint::CREATE_SAMPLING_SESSION)
        .named(NAME)
        .json(&request)
        .policy(Policy::TEN_TIMES);
    let connection = &session.connection;
    let created: CreateSamplingSessionResponse = connection
        .lifecycle
        .reporting(connection.json(call))
        .await?;
    Ok(SamplingClient::original(
        session,
        created.sampling_session_id,
        options,
    ))
}

impl IntoFuture for CreateSamplingClient {
    type Output = Result<SamplingClient, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.create())
    }
}
