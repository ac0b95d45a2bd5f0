//! A connection to one server with one credential: what every client stands on.
//!
//! It is four things: the [`Address`], the [`Credential`], the [`ServerSettings`] and the [`Lifecycle`]. A
//! call goes `retrying` (until its policy ends) → `attempt` (one try, with redirects) → `transport`.

pub(crate) mod address;
mod attempt;
pub(crate) mod billing;
pub(crate) mod call;
pub(crate) mod credential;
pub(crate) mod errors;
pub(crate) mod lifecycle;
pub(crate) mod message;
pub(crate) mod notice;
pub(crate) mod policy;
mod retrying;
pub(crate) mod server_settings;
mod shared;
pub(crate) mod stats;
pub(crate) mod transport;

use crate::auth::claims;
use crate::auth::token_cache::TokenCache;
use crate::auth::{CredentialPolicy, CredentialSource, Secret};
use crate::external::HttpClient;
use crate::options::Options;
use crate::otel;
use crate::{Error, QueueNotice};
use address::Address;
use call::Call;
use credential::Credential;
use lifecycle::Lifecycle;
use message::MessageListener;
use notice::RetryListener;
use policy::Policy;
use server_settings::ServerSettings;
use stats::Counters;
use std::sync::Arc;
use std::time::Duration;
use tinkrs_types::SessionId;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig, TelemetryBatch};
use tinkrs_types::service::WhoAmI;
use tinkrs_wire::op::auth_token::{AuthTokenRequest, AuthTokenResponse};
use tinkrs_wire::op::client_config::ClientConfigRequest;
use tinkrs_wire::{SDK_VERSION, endpoint};
use tokio::runtime::Handle;
use transport::Transport;

/// The operation whose own failures are not reported.
pub(crate) const TELEMETRY: &str = "telemetry";
/// The operation that ends a session.
pub(crate) const FINISH: &str = "finish_session";

/// What a user wants called when a queue pauses.
pub(crate) type QueueListener = Arc<dyn Fn(&QueueNotice) + Send + Sync>;

/// A connection to one server with one credential.
pub(crate) struct Connection {
    pub(crate) address: Address,
    credential: Credential,
    pub(crate) server: ServerSettings,
    pub(crate) lifecycle: Lifecycle,
    transport: Transport,
    pub(crate) counters: Arc<Counters>,
    pub(crate) queue_listener: Option<QueueListener>,
    retry_listener: Option<RetryListener>,
    message_listener: Option<MessageListener>,
    /// Where this connection's tasks run, so that plain functions can start them too.
    pub(crate) runtime: Handle,
}

impl Connection {
    /// Reads the server's settings and gets a credential that it takes.
    pub(crate) async fn open(options: &Options) -> Result<Arc<Self>, Error> {
        let source = options.credential_source(CredentialPolicy::Any)?;
        let mut connection = Self::unconfigured(options, source)?;
        let request = ClientConfigRequest {
            sdk_version: SDK_VERSION.to_owned(),
        };
        let call = Call::new(&endpoint::CLIENT_CONFIG).json(&request);
        let config = connection.json(call).await?;
        connection.configure(options, config, DynamicConfig::default())?;
        let dynamic = connection
            // Nothing runs yet that a pause would save.
            .fetch_dynamic_config(Policy::FIVE_MINUTES.billing_is_final())
            .await?;
        connection.server.set_dynamic_config(dynamic);
        Ok(Arc::new(connection))
    }

    /// Opens a connection that belongs to no session, and reports about it if the settings say so.
    pub(crate) async fn without_session(options: &Options) -> Result<Arc<Self>, Error> {
        let connection = Self::open(options).await?;
        if options.telemetry() {
            connection.start_telemetry(None);
        }
        Ok(connection)
    }

    /// Joins a session whose settings are known, as the holder of a sampler's handle does.
    pub(crate) fn join(
        options: &Options,
        config: ClientConfig,
        dynamic: DynamicConfig,
    ) -> Result<Arc<Self>, Error> {
        let source = options.credential_source(CredentialPolicy::Any)?;
        let mut connection = Self::unconfigured(options, source)?;
        connection.configure(options, config, dynamic)?;
        Ok(Arc::new(connection))
    }

    fn unconfigured(options: &Options, source: CredentialSource) -> Result<Self, Error> {
        let base_url = options.base_url()?;
        let runtime = Handle::try_current().map_err(|_| Error::Setup {
            message: "no tokio runtime: call this inside one, or use the `blocking` feature"
                .to_owned(),
        })?;
        let counters = Arc::default();
        otel::count(&counters);
        Ok(Self {
            address: Address::new(options, &base_url)?,
            credential: Credential::new(source)?,
            server: ServerSettings::unknown(),
            lifecycle: Lifecycle::new(),
            transport: Transport::new(&base_url)?,
            counters,
            queue_listener: options.queue_listener.clone(),
            retry_listener: options.retry_listener.clone(),
            message_listener: options.message_listener.clone(),
            runtime,
        })
    }

    /// Applies the server's settings.
    fn configure(
        &mut self,
        options: &Options,
        config: ClientConfig,
        dynamic: DynamicConfig,
    ) -> Result<(), Error> {
        self.credential = if config.pjwt_auth_enabled {
            let policy = match config.credential_default_source.as_str() {
                "credential_cmd" => CredentialPolicy::Dynamic,
                _ => CredentialPolicy::Any,
            };
            let source = options.credential_source(policy)?;
            let exchange = Arc::new(Self::unconfigured(options, source.clone())?);
            let tokens = TokenCache::new(move || {
                let exchange = Arc::clone(&exchange);
                async move { exchange.token().await }
            });
            Credential::exchanged(source, tokens)
        } else {
            Credential::new(options.credential_source(CredentialPolicy::Static)?)?
        };
        self.server = ServerSettings::new(
            config,
            dynamic,
            options.backpressure,
            &self.address.base_url,
            self.credential.source(),
        );
        Ok(())
    }

    /// Exchanges this connection's credential for a token.
    async fn token(&self) -> Result<Secret, Error> {
        let call = Call::new(&endpoint::AUTH_TOKEN)
            .json(&AuthTokenRequest {})
            .policy(Policy::TEN_TIMES);
        let token: AuthTokenResponse = self.json(call).await?;
        Ok(token.jwt.into())
    }

    /// Reads who the credential belongs to, without asking the server.
    pub(crate) async fn whoami(&self) -> Result<WhoAmI, Error> {
        let (token, exchanged) = self.credential.token().await?;
        Ok(claims::whoami(&token, exchanged)?)
    }

    /// Reads the settings that may change; servers without any answer 404.
    pub(crate) async fn fetch_dynamic_config(
        &self,
        policy: Policy,
    ) -> Result<DynamicConfig, Error> {
        let request = ClientConfigRequest {
            sdk_version: SDK_VERSION.to_owned(),
        };
        let call = Call::new(&endpoint::CLIENT_DYNAMIC_CONFIG)
            .json(&request)
            .policy(policy)
            .timeout(Duration::from_secs(10));
        match self.json(call).await {
            Err(error) if error.status() == Some(404) => Ok(DynamicConfig::default()),
            other => other,
        }
    }

    /// Starts to report about this connection, to its own server.
    pub(crate) fn start_telemetry(self: &Arc<Self>, session: Option<&SessionId>) {
        // The reports must not keep the connection alive.
        let weak = Arc::downgrade(self);
        let send = move |batch: TelemetryBatch| {
            let connection = weak.upgrade();
            async move {
                let operation = TELEMETRY;
                let connection = connection.ok_or(Error::Closed { operation })?;
                let call = Call::new(&endpoint::TELEMETRY)
                    .named(operation)
                    .json(&batch)
                    .policy(Policy::ONCE)
                    .timeout(Duration::from_secs(5));
                connection.call(&call).await.map(drop)
            }
        };
        self.lifecycle.start_telemetry(session, send);
    }

    /// Refuses new work from now on.
    pub(crate) fn close(&self) {
        self.lifecycle.close();
        self.credential.close();
    }

    /// Returns a client for files on other hosts, which take no credential.
    pub(crate) fn downloads(&self) -> HttpClient {
        self.transport.external().clone()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("base_url", &self.address.base_url)
            .finish_non_exhaustive()
    }
}
