//! The way in: one client for one server and credential, and the clients that come from it.

use crate::admin::AdminClient;
use crate::connection::call::Call;
use crate::connection::message::ServiceMessage;
use crate::connection::notice::RetryNotice;
use crate::connection::policy::Policy;
use crate::connection::stats::Stats;
use crate::future::QueueNotice;
use crate::limiter::BackpressureScope;
use crate::options::Options;
use crate::rest::RestClient;
use crate::session::Session;
use crate::{Error, auth::Secret, connection::Connection};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tinkrs_types::protocol::Severity;
use tinkrs_types::service::{ServerCapabilities, WhoAmI};
use tinkrs_types::session::FinishReason;
use tinkrs_types::{ProjectId, SessionId, UserMetadata};
use tinkrs_wire::endpoint;
use tokio::sync::OnceCell;

/// The entry point. It connects when it is first used, not when it is made.
///
/// A client is a handle: cloning it is cheap, and clones are the same client.
///
/// ```no_run
/// # async fn run() -> Result<(), tinkrs::Error> {
/// use tinkrs::ServiceClient;
///
/// let service = ServiceClient::from_env();
/// for model in service.get_server_capabilities().await?.supported_models {
///     println!("{}", model.model_name.unwrap_or_default());
/// }
/// let training = service.create_lora_training_client("Qwen/Qwen3-8B").rank(16).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ServiceClient {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) options: Options,
    session: OnceCell<Arc<Session>>,
    sessionless: OnceCell<Arc<Connection>>,
    /// Whether the connection without a session is that of all such clients with the same settings.
    shares_connection: bool,
    closed: AtomicBool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("session", &self.session.get())
            .finish_non_exhaustive()
    }
}

/// Settings of a [`ServiceClient`], each with a default.
#[derive(Clone, Default)]
pub struct ServiceClientBuilder {
    pub(crate) options: Options,
}

impl std::fmt::Debug for ServiceClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceClientBuilder")
            .finish_non_exhaustive()
    }
}

impl ServiceClientBuilder {
    /// Sets where the server is. The default is `TINKER_BASE_URL`, else the hosted service.
    #[must_use]
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.options.base_url = Some(url.into());
        self
    }

    /// Sets the key or token. The default is `TINKER_API_KEY`, else `TINKER_CREDENTIAL_CMD`,
    /// else the key that `tinkrs auth login` stored.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<Secret>) -> Self {
        self.options.api_key = Some(key.into());
        self
    }

    /// Sets the project of new sessions. The default is `TINKER_PROJECT_ID`, else the server's.
    #[must_use]
    pub fn project_id(mut self, project: impl Into<ProjectId>) -> Self {
        self.options.project_id = Some(project.into());
        self
    }

    /// Labels new sessions.
    #[must_use]
    pub fn user_metadata(mut self, metadata: UserMetadata) -> Self {
        self.options.user_metadata = metadata;
        self
    }

    /// Names new sessions for people.
    #[must_use]
    pub fn display_name(mut self, name: impl Into<String>) -> Self {
        self.options.display_name = Some(name.into());
        self
    }

    /// Tags new sessions. The default is `TINKER_TAGS`, split at commas.
    #[must_use]
    pub fn tags(mut self, tags: impl Into<Vec<String>>) -> Self {
        self.options.tags = Some(tags.into());
        self
    }

    /// Adds a header to every request.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.headers.insert(name.into(), value.into());
        self
    }

    /// Sets who shares backpressure with this client. The default is the whole account.
    #[must_use]
    pub fn backpressure(mut self, scope: BackpressureScope) -> Self {
        self.options.backpressure = scope;
        self
    }

    /// Bounds how long the server may be silent in one HTTP call: before it answers, and between
    /// the parts of a long answer. The default is the protocol's own: 45 s for polls, 60 s for
    /// most others.
    #[must_use]
    pub fn http_timeout(mut self, timeout: Duration) -> Self {
        self.options.http_timeout = Some(timeout);
        self
    }

    /// Bounds how long a call is retried. The default is the protocol's own: five minutes for
    /// most calls, ten retries for others; polls for results go on for as long as it takes.
    ///
    /// A server that has never answered is an error after 25 s at most, whatever this is.
    #[must_use]
    pub fn max_retry_time(mut self, time: Duration) -> Self {
        self.options.max_retry_time = Some(time);
        self
    }

    /// Calls a function when a call, or a poll for a result, has failed and is tried again: once
    /// for a call, however often it is retried. It should return quickly.
    #[must_use]
    pub fn on_retry(mut self, listener: impl Fn(&RetryNotice) + Send + Sync + 'static) -> Self {
        self.options.retry_listener = Some(Arc::new(listener));
        self
    }

    /// Calls a function with what the service says besides the responses to calls: messages to the session,
    /// deprecations, billing blocks and long rate limits that are waited out, missed heartbeats. What goes on is
    /// said again and again. It should return quickly.
    #[must_use]
    pub fn on_message(
        mut self,
        listener: impl Fn(&ServiceMessage) + Send + Sync + 'static,
    ) -> Self {
        self.options.message_listener = Some(Arc::new(listener));
        self
    }

    /// Reports about this client to the server it talks to. The default is `TINKER_TELEMETRY`.
    #[must_use]
    pub fn telemetry(mut self, enabled: bool) -> Self {
        self.options.telemetry = Some(enabled);
        self
    }

    /// Calls a function whenever a poll finds that the server does not work on a request.
    #[must_use]
    pub fn on_queue_state(
        mut self,
        listener: impl Fn(&QueueNotice) + Send + Sync + 'static,
    ) -> Self {
        self.options.queue_listener = Some(Arc::new(listener));
        self
    }

    /// Makes the client. Nothing is connected, and nothing can fail, before it is used.
    pub fn build(self) -> ServiceClient {
        self.build_with(false)
    }

    /// Makes a client for what needs no session. It shares its connection with others of its kind, so it must not
    /// be closed: it is never given to users.
    pub(crate) fn build_shared(self) -> ServiceClient {
        self.build_with(true)
    }

    fn build_with(self, shares_connection: bool) -> ServiceClient {
        ServiceClient {
            inner: Arc::new(Inner {
                options: self.options,
                session: OnceCell::new(),
                sessionless: OnceCell::new(),
                shares_connection,
                closed: AtomicBool::new(false),
            }),
        }
    }
}

impl ServiceClient {
    /// Makes a client with the settings of the environment.
    pub fn from_env() -> Self {
        Self::builder().build()
    }

    /// Makes a client with other settings.
    pub fn builder() -> ServiceClientBuilder {
        ServiceClientBuilder::default()
    }

    /// Asks the server which models it offers.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub async fn get_server_capabilities(&self) -> Result<ServerCapabilities, Error> {
        let call = Call::new(&endpoint::GET_SERVER_CAPABILITIES);
        let connection = self.connection(call.operation).await?;
        connection.lifecycle.reporting(connection.json(call)).await
    }

    /// Checks that the service can be used with this credential, without waiting out a billing
    /// block.
    ///
    /// # Errors
    /// If it cannot; a billing block comes as status 402.
    pub async fn check_access(&self) -> Result<(), Error> {
        let connection = self.connection("check_access").await?;
        let call = Call::new(&endpoint::GET_SERVER_CAPABILITIES)
            .named("check_access")
            .policy(Policy::TEN_TIMES);
        let answer = connection.lifecycle.reporting(connection.call(&call)).await;
        answer.map(drop)
    }

    /// Reads who the credential belongs to.
    ///
    /// # Errors
    /// If the credential is a key, which does not say.
    pub async fn whoami(&self) -> Result<WhoAmI, Error> {
        self.connection("whoami").await?.whoami().await
    }

    /// Returns a client of the metadata endpoints: runs, checkpoints, sessions.
    pub fn create_rest_client(&self) -> RestClient {
        RestClient::new(self.clone())
    }

    /// Returns a client of the administrator's endpoints: audit log, usage, storage.
    pub fn create_admin_client(&self) -> AdminClient {
        AdminClient::new(self.clone())
    }

    /// Returns the session, once there is one: the first training or sampling call starts it.
    pub fn session_id(&self) -> Option<&SessionId> {
        self.inner.session.get().map(|session| &session.id)
    }

    /// Adds an event of one's own to the reports about this client, which go to the server that it talks to.
    ///
    /// Texts that look like credentials are taken out. It returns false if nothing is reported: reports
    /// are off, or this client has not connected yet.
    pub fn report_event(
        &self,
        name: &str,
        severity: Severity,
        data: serde_json::Map<String, serde_json::Value>,
    ) -> bool {
        let session = self.inner.session.get().map(|session| &session.connection);
        let connection = session.or_else(|| self.inner.sessionless.get());
        connection.is_some_and(|connection| connection.lifecycle.report_own(name, severity, data))
    }

    /// Returns what this client has done so far, over all its connections.
    pub fn stats(&self) -> Stats {
        let session = self
            .inner
            .session
            .get()
            .map(|session| session.connection.counters.snapshot());
        let sessionless = self
            .inner
            .sessionless
            .get()
            .map(|connection| connection.counters.snapshot());
        session
            .into_iter()
            .chain(sessionless)
            .fold(Stats::default(), Stats::plus)
    }

    /// Ends the session and stops everything that this client has running.
    ///
    /// The first call decides how the session ended; later ones do nothing. New operations fail
    /// from now on. A client that is dropped without this ends too, but the server only notices
    /// when its heartbeats stay away.
    ///
    /// # Errors
    /// If the server could not be told. The client is closed all the same.
    pub async fn close(&self, reason: FinishReason, detail: Option<&str>) -> Result<(), Error> {
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let sessionless = self.inner.sessionless.get();
        sessionless.iter().for_each(|connection| connection.close());
        let finished = match self.inner.session.get() {
            Some(session) => {
                session.connection.close();
                session.finish(reason, detail.map(str::to_owned)).await
            }
            None => Ok(()),
        };
        if let Some(connection) = sessionless {
            connection
                .lifecycle
                .close_telemetry(FinishReason::Success)
                .await;
        }
        finished
    }

    /// Returns the session, starting it if this is the first use.
    pub(crate) async fn session(&self, operation: &'static str) -> Result<Arc<Session>, Error> {
        self.check_open(operation)?;
        let create = || Session::create(&self.inner.options);
        let session = self.inner.session.get_or_try_init(create).await?;
        // The client may have been closed meanwhile, when there was no session to end yet.
        self.check_open(operation)
            .inspect_err(|_| session.abandon())?;
        Ok(Arc::clone(session))
    }

    /// Returns a connection that needs no session.
    pub(crate) async fn connection(
        &self,
        operation: &'static str,
    ) -> Result<Arc<Connection>, Error> {
        self.check_open(operation)?;
        if let Some(session) = self.inner.session.get() {
            return Ok(Arc::clone(&session.connection));
        }
        let options = &self.inner.options;
        let open = || async {
            if self.inner.shares_connection {
                Connection::shared(options).await
            } else {
                Connection::without_session(options).await
            }
        };
        let connection = self.inner.sessionless.get_or_try_init(open).await?;
        self.check_open(operation)
            .inspect_err(|_| connection.close())?;
        Ok(Arc::clone(connection))
    }

    fn check_open(&self, operation: &'static str) -> Result<(), Error> {
        if self.inner.closed.load(Ordering::Acquire) {
            Err(Error::Closed { operation })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelInput, SamplingParams};
    use tinkrs_testkit::ScriptedServer;
    use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL, Gate, status};

    fn service(server: &ScriptedServer) -> ServiceClient {
        ServiceClient::builder()
            .base_url(server.url())
            .api_key(API_KEY)
            .telemetry(false)
            .backpressure(BackpressureScope::Client)
            .build()
    }

    #[tokio::test]
    async fn closing_ends_what_is_waited_for_and_refuses_all_else() {
        let server = ScriptedServer::start().await;
        server.on("asample").hold_result(&Gate::closed());
        let service = service(&server);
        let sampler = service.create_sampling_client(BASE_MODEL).await.unwrap();
        let training = service
            .create_lora_training_client(BASE_MODEL)
            .await
            .unwrap();
        let prompt = ModelInput::from_tokens([1]);
        let pending = sampler.sample(prompt, SamplingParams::new(1)).submit();
        server.received("retrieve_future", 2).await;

        service.close(FinishReason::Success, None).await.unwrap();
        assert!(matches!(pending.await, Err(Error::Closed { .. })));
        assert!(matches!(
            training.get_info().await,
            Err(Error::Closed { .. })
        ));
        let another = training.create_sampling_client(BASE_MODEL).await;
        assert!(matches!(another, Err(Error::Closed { .. })));
        assert_eq!(server.requests_to("finish_session").len(), 1);
        assert!(server.requests_to("get_info").is_empty());
    }

    #[tokio::test]
    async fn a_session_that_starts_while_the_client_is_closed_does_not_stay() {
        let server = ScriptedServer::start().await;
        let gate = Gate::closed();
        server.on("create_session").stall_until(&gate);
        let service = service(&server);
        let starting = tokio::spawn({
            let service = service.clone();
            async move { service.create_sampling_client(BASE_MODEL).await }
        });
        server.received("create_session", 1).await;
        service.close(FinishReason::Success, None).await.unwrap();
        gate.open();
        let started = starting.await.unwrap();
        assert!(matches!(started, Err(Error::Closed { .. })));
        let session = service.inner.session.get().unwrap();
        assert!(session.connection.lifecycle.check_open("test").is_err());
    }

    #[tokio::test]
    async fn a_billing_block_reaches_the_caller_where_nothing_runs_yet() {
        let server = ScriptedServer::start().await;
        let refused = |error: Error| assert_eq!(error.status(), Some(402), "{error}");
        server.on("client_dynamic_config").reply(status(402));
        refused(service(&server).check_access().await.unwrap_err());

        let service = service(&server);
        server
            .on("get_server_capabilities")
            .reply(status(503).header("retry-after-ms", "1"));
        server.on("get_server_capabilities").reply(status(402));
        refused(service.check_access().await.unwrap_err());

        server.on("create_model").reply(status(402));
        let created = service.create_lora_training_client(BASE_MODEL).await;
        refused(created.unwrap_err());
    }

    #[tokio::test]
    async fn requests_say_how_long_an_answer_is_waited_for() {
        let server = ScriptedServer::start().await;
        service(&server).check_access().await.unwrap();
        for (endpoint, seconds) in [
            ("get_server_capabilities", "60"),
            ("client_dynamic_config", "10"),
        ] {
            let requests = server.requests_to(endpoint);
            let header = requests[0].header("x-stainless-read-timeout");
            assert_eq!(header, Some(seconds), "{endpoint}");
        }
    }
}
