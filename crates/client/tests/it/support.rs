//! What all tests need: clients of a scripted or of a real server, and data that can be told apart.

use anyhow::Result;
use std::ops::Deref;
use tinkrs::{
    Datum, ModelInput, Pending, SampleOutput, SamplingClient, SamplingParams, ServiceClient,
    ServiceClientBuilder, TrainingClient,
};
use tinkrs_server::{BaseModel, LocalServer, Settings};
use tinkrs_testkit::arithmetic::logprob;
use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL, Recorded};
use tinkrs_testkit::{FakeBackend, ScriptedServer};

/// The real server, with a model without weights. The scripted server in front of it records what it is
/// sent and has rules; all else is answered by the real one.
pub(crate) struct RealServer {
    front: ScriptedServer,
    _server: LocalServer,
    _data: tempfile::TempDir,
}

impl RealServer {
    pub(crate) async fn start() -> Result<Self> {
        Self::of(BaseModel::new(BASE_MODEL, FakeBackend::new())).await
    }

    pub(crate) async fn of(model: BaseModel) -> Result<Self> {
        let data = tempfile::tempdir()?;
        let server = LocalServer::start(vec![model], Settings::new(data.path())).await?;
        Ok(Self {
            front: ScriptedServer::in_front_of(server.url()).await,
            _server: server,
            _data: data,
        })
    }
}

impl Deref for RealServer {
    type Target = ScriptedServer;

    fn deref(&self) -> &ScriptedServer {
        &self.front
    }
}

pub(crate) fn builder(server: &ScriptedServer) -> ServiceClientBuilder {
    ServiceClient::builder()
        .base_url(server.url())
        .api_key(API_KEY)
        .telemetry(false)
}

pub(crate) fn service(server: &ScriptedServer) -> ServiceClient {
    builder(server).build()
}

pub(crate) async fn training(server: &ScriptedServer) -> Result<TrainingClient> {
    Ok(service(server)
        .create_lora_training_client(BASE_MODEL)
        .rank(8)
        .await?)
}

pub(crate) async fn sampling(server: &ScriptedServer) -> Result<SamplingClient> {
    Ok(service(server).create_sampling_client(BASE_MODEL).await?)
}

/// A datum that can be recognised by its first token. Its loss is [`loss_of`] the tag.
pub(crate) fn datum(tag: u32) -> Datum {
    Datum::supervised(vec![tag, 1], [1, i64::from(tag)], [0.0, 1.0]).expect("the lengths agree")
}

pub(crate) fn datums(tags: impl IntoIterator<Item = u32>) -> Vec<Datum> {
    tags.into_iter().map(datum).collect()
}

/// The cross-entropy of [`datum`].
pub(crate) fn loss_of(tag: u32) -> f64 {
    -f64::from(logprob(tag.into()))
}

/// The tags of the datums in a request.
pub(crate) fn tags(request: &Recorded) -> Vec<u32> {
    let tag = |datum: &Datum| datum.model_input().to_tokens().expect("text")[0];
    request.pass().data.iter().map(tag).collect()
}

/// The tags of all datums that the server worked on, in order, one list for each request.
pub(crate) fn executed_tags(server: &ScriptedServer) -> Vec<Vec<u32>> {
    let requests = server.requests();
    let executions = server.executions().into_iter();
    executions
        .filter(|execution| execution.operation.starts_with("forward"))
        .map(|execution| tags(&requests[execution.request]))
        .collect()
}

/// Asks for one sequence after a prompt of two tokens.
pub(crate) fn sample(client: &SamplingClient) -> Pending<SampleOutput> {
    let prompt = ModelInput::from_tokens([5, 6]);
    client.sample(prompt, SamplingParams::new(3)).submit()
}

/// Lets everything happen that can happen without time passing, on a single-threaded runtime.
pub(crate) async fn settle() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}
