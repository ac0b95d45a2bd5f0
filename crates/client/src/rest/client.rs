use crate::connection::call::Call;
use crate::{Error, ServiceClient, ServiceClientBuilder};
use http::header::HeaderValue;
use serde::de::DeserializeOwned;
use tinkrs_types::SamplingSessionId;
use tinkrs_types::service::WhoAmI;
use tinkrs_wire::{SDK_VERSION, endpoint, header};

pub use tinkrs_types::rest::SamplerInfo;

/// Reads and manages training runs, checkpoints and sessions. It starts no session.
///
/// ```no_run
/// # async fn run(service: tinkrs::ServiceClient) -> Result<(), tinkrs::Error> {
/// let rest = service.create_rest_client();
/// let page = rest.list_training_runs().limit(20).await?;
/// println!("{} of {} runs", page.training_runs.len(), page.cursor.total_count);
///
/// let mut checkpoints = rest.all_user_checkpoints(); // page after page, as they are needed
/// while let Some(checkpoint) = checkpoints.next().await {
///     println!("{}", checkpoint?.tinker_path);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RestClient {
    service: ServiceClient,
}

impl RestClient {
    pub(crate) fn new(service: ServiceClient) -> Self {
        Self { service }
    }

    /// Makes a client with the settings of the environment, which shares its connection as
    /// [`with_settings`](Self::with_settings) says.
    pub fn from_env() -> Self {
        Self::with_settings(ServiceClient::builder())
    }

    /// Makes a client with other settings.
    ///
    /// Clients of a process that are made in this way with the same settings, administrators' too, share one
    /// connection for as long as one of them lives, so making one for each call is cheap.
    pub fn with_settings(settings: ServiceClientBuilder) -> Self {
        Self::new(settings.build_shared())
    }

    /// Asks which model a sampler samples from.
    ///
    /// # Errors
    /// If there is no such sampler or the server cannot be asked.
    pub async fn get_sampler(&self, id: &SamplingSessionId) -> Result<SamplerInfo, Error> {
        self.json(Call::at(&endpoint::GET_SAMPLER, id)).await
    }

    /// Reads who the credential belongs to.
    ///
    /// # Errors
    /// If the credential is a key, which does not say.
    pub async fn whoami(&self) -> Result<WhoAmI, Error> {
        self.service.whoami().await
    }

    pub(crate) fn service(&self) -> &ServiceClient {
        &self.service
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let connection = self.service.connection(call.operation).await?;
        connection
            .lifecycle
            .reporting(connection.json(as_method(call)))
            .await
    }

    /// Makes a call whose answer is a file.
    pub(crate) async fn bytes(&self, call: Call) -> Result<Vec<u8>, Error> {
        let connection = self.service.connection(call.operation).await?;
        let call = as_method(call);
        let answer = connection.lifecycle.reporting(connection.call(&call)).await;
        answer.map(|answer| answer.body.into())
    }

    /// Makes a call whose answer says nothing.
    pub(crate) async fn done(&self, call: Call) -> Result<(), Error> {
        let connection = self.service.connection(call.operation).await?;
        let call = as_method(call);
        let answer = connection.lifecycle.reporting(connection.call(&call)).await;
        answer.map(drop)
    }
}

/// Names the method to the server, as the official client does.
fn as_method(call: Call) -> Call {
    let method = HeaderValue::from_static(call.operation);
    call.header(header::SDK_VERSION, HeaderValue::from_static(SDK_VERSION))
        .header(header::SDK_METHOD, method)
}
