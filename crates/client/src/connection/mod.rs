//! A connection to one server with one credential: what every client stands on.

mod attempt;
pub(crate) mod billing;
pub(crate) mod call;
pub(crate) mod credential;
pub(crate) mod fault;
pub(crate) mod older;
mod request;
pub(crate) mod retry;
pub(crate) mod stats;
mod submit;
pub(crate) mod transport;

use crate::auth::claims;
use crate::auth::token_cache::TokenCache;
use crate::auth::{CredentialPolicy, CredentialSource, Secret};
use crate::byte_budget::ByteBudget;
use crate::limiter::{BackpressureScope, Limiter, LimiterKey};
use crate::options::Options;
use crate::telemetry::Telemetry;
use crate::telemetry::named::Named;
use crate::{Error, QueueNotice};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use billing::Billing;
use call::Call;
use credential::Credential;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use older::PassForm;
use retry::Policy;
use stats::Counters;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tinkrs_types::SessionId;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig, TelemetryBatch};
use tinkrs_types::service::WhoAmI;
use tinkrs_types::session::FinishReason;
use tinkrs_wire::op::auth_token::{AuthTokenRequest, AuthTokenResponse};
use tinkrs_wire::op::client_config::ClientConfigRequest;
use tinkrs_wire::{SDK_VERSION, header, route};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use transport::{ACCEPTED_ENCODINGS, Transport};

/// The operation whose own failures are not reported.
pub(crate) const TELEMETRY: &str = "telemetry";
/// The operation that ends a session.
pub(crate) const FINISH: &str = "finish_session";

/// What a user wants called when a queue pauses.
pub(crate) type QueueListener = Arc<dyn Fn(&QueueNotice) + Send + Sync>;

/// A connection to one server with one credential.
pub(crate) struct Connection {
    pub(crate) base_url: String,
    /// The path that all others come after.
    base_path: String,
    default_headers: Vec<(HeaderName, HeaderValue)>,
    /// The headers among them that the user has set, for others who join the session.
    pub(crate) header_overrides: BTreeMap<String, String>,
    max_timeout: Duration,
    transport: Transport,
    credential: Credential,
    source: CredentialSource,
    billing: Billing,
    dynamic: RwLock<DynamicConfig>,
    closed: AtomicBool,
    /// True once no result is worth waiting for any more.
    ended: watch::Sender<bool>,
    telemetry: OnceLock<Telemetry>,

    pub(crate) config: ClientConfig,
    pub(crate) pass_form: PassForm,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) upload_bytes: Arc<ByteBudget>,
    pub(crate) result_bytes: Arc<ByteBudget>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) queue_listener: Option<QueueListener>,
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
        let call = Call::post("client_config", route::CLIENT_CONFIG, &request);
        connection.configure(options, connection.json(call).await?)?;
        let dynamic = connection
            // Nothing runs yet that a pause would save.
            .fetch_dynamic_config(Policy::FIVE_MINUTES.billing_is_final())
            .await?;
        connection.dynamic = RwLock::new(dynamic);
        Ok(Arc::new(connection))
    }

    /// Joins a session whose settings are known, as the holder of a sampler's handle does.
    pub(crate) fn join(
        options: &Options,
        config: ClientConfig,
        dynamic: DynamicConfig,
    ) -> Result<Arc<Self>, Error> {
        let source = options.credential_source(CredentialPolicy::Any)?;
        let mut connection = Self::unconfigured(options, source)?;
        connection.configure(options, config)?;
        connection.dynamic = RwLock::new(dynamic);
        Ok(Arc::new(connection))
    }

    fn unconfigured(options: &Options, source: CredentialSource) -> Result<Self, Error> {
        let base_url = options.base_url()?;
        let runtime = Handle::try_current().map_err(|_| Error::Setup {
            message: "no tokio runtime: call this inside one, or use the `blocking` feature"
                .to_owned(),
        })?;
        let config = ClientConfig::default();
        Ok(Self {
            default_headers: default_headers(options, &base_url)?,
            header_overrides: options.headers.clone(),
            max_timeout: options.http_timeout,
            transport: Transport::new(&base_url)?,
            credential: Credential::new(source.clone())?,
            source,
            billing: Billing::new(Duration::ZERO),
            dynamic: RwLock::default(),
            closed: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            telemetry: OnceLock::new(),
            limiter: Limiter::new(config.sample_dispatch_bytes_semaphore_size),
            upload_bytes: ByteBudget::new(config.fwdbwd_dispatch_bytes_semaphore_size),
            result_bytes: ByteBudget::new(config.inflight_response_bytes_semaphore_size),
            config,
            pass_form: PassForm::default(),
            counters: Arc::default(),
            queue_listener: options.queue_listener.clone(),
            runtime,
            base_path: base_url.path().trim_end_matches('/').to_owned(),
            base_url: base_url.as_str().trim_end_matches('/').to_owned(),
        })
    }

    /// Does what the server's settings ask for.
    fn configure(&mut self, options: &Options, config: ClientConfig) -> Result<(), Error> {
        if config.pjwt_auth_enabled {
            let policy = match config.credential_default_source.as_str() {
                "credential_cmd" => CredentialPolicy::Dynamic,
                _ => CredentialPolicy::Any,
            };
            self.source = options.credential_source(policy)?;
            let exchange = Arc::new(Self::unconfigured(options, self.source.clone())?);
            self.credential = Credential::Exchanged(TokenCache::new(move || {
                let exchange = Arc::clone(&exchange);
                async move { exchange.token().await }
            }));
        } else {
            self.source = options.credential_source(CredentialPolicy::Static)?;
            self.credential = Credential::new(self.source.clone())?;
        }
        let sample_bytes = config.sample_dispatch_bytes_semaphore_size;
        self.limiter = match options.backpressure {
            BackpressureScope::Client => Limiter::new(sample_bytes),
            BackpressureScope::Account => {
                let credential_digest = credential::digest(&self.source);
                let base_url = self.base_url.clone();
                Limiter::shared(
                    LimiterKey {
                        base_url,
                        credential_digest,
                    },
                    sample_bytes,
                )
            }
        };
        self.billing = Billing::new(Duration::from_secs(
            config.billing_exception_max_pause_duration_sec,
        ));
        self.upload_bytes = ByteBudget::new(config.fwdbwd_dispatch_bytes_semaphore_size);
        self.result_bytes = ByteBudget::new(config.inflight_response_bytes_semaphore_size);
        self.config = config;
        Ok(())
    }

    /// Trades this connection's credential for a token.
    async fn token(&self) -> Result<Secret, Error> {
        let call = Call::post("auth_token", route::AUTH_TOKEN, &AuthTokenRequest {})
            .policy(Policy::TEN_TIMES);
        let token: AuthTokenResponse = self.json(call).await?;
        Ok(token.jwt.into())
    }

    /// Reads who the credential belongs to, without asking the server.
    pub(crate) async fn whoami(&self) -> Result<WhoAmI, Error> {
        let (token, exchanged) = self.credential.token(&self.source).await?;
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
        let call = Call::post("client_dynamic_config", route::DYNAMIC_CONFIG, &request)
            .policy(policy)
            .timeout(Duration::from_secs(10));
        match self.json(call).await {
            Err(error) if error.status() == Some(404) => Ok(DynamicConfig::default()),
            other => other,
        }
    }

    pub(crate) fn dynamic_config(&self) -> DynamicConfig {
        self.dynamic
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_dynamic_config(&self, config: DynamicConfig) {
        *self.dynamic.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Takes note of a 402 and returns whether to wait and try again. All who share the
    /// limiter wait with us.
    pub(crate) fn billing_may_pause(&self) -> bool {
        let may_pause = self.billing.may_pause(Instant::now());
        if may_pause {
            self.limiter.refused(0);
        }
        may_pause
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
                let call = Call::post(operation, route::TELEMETRY, &batch)
                    .policy(Policy::ONCE)
                    .timeout(Duration::from_secs(5));
                connection.call(&call).await.map(drop)
            }
        };
        // A second start would only be a second task with the same reports.
        let _ = self.telemetry.set(Telemetry::start(session, send));
    }

    /// Reports an event, which is only described if anybody wants to know.
    pub(crate) fn report<E: Named>(&self, event: impl FnOnce() -> E) {
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.named(&event());
        }
    }

    /// Reports an error that reaches the user.
    pub(crate) fn report_error(&self, error: &Error) {
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.error(error);
        }
    }

    /// Runs an operation and reports its error, which reaches the user.
    pub(crate) async fn reporting<T>(
        &self,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let result = operation.await;
        result.inspect_err(|error| self.report_error(error))
    }

    /// Sends what there is to report, and reports no more.
    pub(crate) async fn close_telemetry(&self, reason: FinishReason) {
        if let Some(telemetry) = self.telemetry.get() {
            if reason == FinishReason::Errored {
                telemetry.ended();
            }
            telemetry.close().await;
        }
    }

    /// Refuses new work from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.credential.close();
    }

    /// Gives up waiting for results that have not arrived yet.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Returns once [`end`](Self::end) was called.
    pub(crate) async fn ended(&self) {
        // The sender is our own, so it is there for as long as we are.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    pub(crate) fn check_open(&self, operation: &'static str) -> Result<(), Error> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::Closed { operation }),
            false => Ok(()),
        }
    }

    /// Returns a client for files that lie elsewhere and take no credential.
    pub(crate) fn downloads(&self) -> reqwest::Client {
        self.transport.elsewhere().clone()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

fn default_headers(
    options: &Options,
    base_url: &reqwest::Url,
) -> Result<Vec<(HeaderName, HeaderValue)>, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(
        ACCEPT_ENCODING,
        HeaderValue::from_static(ACCEPTED_ENCODINGS),
    );
    if !base_url.username().is_empty() {
        headers.insert(AUTHORIZATION, basic_auth(base_url));
    }
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("tinkrs/", env!("CARGO_PKG_VERSION"))),
    );
    headers.insert(
        HeaderName::from_static(header::PACKAGE_VERSION),
        HeaderValue::from_static(SDK_VERSION),
    );
    for (name, value) in options.extra_headers() {
        let refused = |what: &str| Error::Setup {
            message: format!("header `{name}`: not a valid {what}"),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| refused("value"))?;
        value.set_sensitive(true);
        headers.insert(
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("name"))?,
            value,
        );
    }
    let single = |(name, value): (Option<HeaderName>, _)| Some((name?, value));
    Ok(headers.into_iter().filter_map(single).collect())
}

/// Returns the header for the user and the password in a URL.
fn basic_auth(url: &reqwest::Url) -> HeaderValue {
    let pair = format!("{}:{}", url.username(), url.password().unwrap_or_default());
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair)))
        .expect("base64 is fit for a header");
    value.set_sensitive(true);
    value
}
