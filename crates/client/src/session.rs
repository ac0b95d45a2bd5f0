//! A session: a connection, the numbers that its models and samplers get, and the tasks that
//! keep it alive.

use crate::Error;
use crate::connection::Connection;
use crate::connection::call::Call;
use crate::connection::message::ServiceMessage;
use crate::connection::policy::Policy;
use crate::options::Options;
use crate::sampling::cancel::CancelQueue;
use crate::training::json_fallback::BodyFormat;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tinkrs_types::SessionId;
use tinkrs_types::protocol::Severity;
use tinkrs_types::session::FinishReason;
use tinkrs_wire::op::create_session::{CreateSessionRequest, CreateSessionResponse};
use tinkrs_wire::op::finish_session::FinishSessionRequest;
use tinkrs_wire::op::session_heartbeat::SessionHeartbeatRequest;
use tinkrs_wire::{SDK_VERSION, endpoint};
use tokio::task::JoinHandle;
use tokio::time::Instant;
#[cfg(feature = "autodiff")]
use {
    crate::training::CustomLossHandle, std::collections::HashMap, std::sync::Mutex,
    tokio::sync::OnceCell,
};

const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);
const HEARTBEAT_WARN_AFTER: Duration = Duration::from_secs(120);
const MIN_REFRESH: Duration = Duration::from_secs(10);

/// The custom losses that a session knows, by what they do.
#[cfg(feature = "autodiff")]
#[derive(Debug, Default)]
struct CustomLosses {
    next: AtomicU64,
    created: Mutex<HashMap<String, Arc<OnceCell<CustomLossHandle>>>>,
}

/// A session with the server. Dropping it stops its tasks; it does not finish the session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connection: Arc<Connection>,
    pub(crate) id: SessionId,
    pub(crate) cancels: CancelQueue,
    next_model: AtomicU64,
    next_sampler: AtomicU64,
    pub(crate) forward_backward_format: BodyFormat,
    #[cfg(feature = "autodiff")]
    custom_losses: CustomLosses,
    tasks: Vec<JoinHandle<()>>,
}

impl Session {
    /// Opens a connection and a new session on it.
    pub(crate) async fn create(options: &Options) -> Result<Arc<Self>, Error> {
        let connection = Connection::open(options).await?;
        let metadata = options
            .user_metadata
            .iter()
            .map(|(name, value)| (name.clone(), value.clone().into()));
        let request = CreateSessionRequest {
            tags: options.tags(),
            user_metadata: Some(metadata.collect()),
            sdk_version: SDK_VERSION.to_owned(),
            project_id: options.project_id(),
            display_name: options.display_name.clone(),
        };
        let call = Call::new(&endpoint::CREATE_SESSION)
            .json(&request)
            .policy(Policy::TEN_TIMES);
        let created: CreateSessionResponse = connection.json(call).await?;
        for (message, severity) in [
            (&created.info_message, Severity::Info),
            (&created.warning_message, Severity::Warning),
            (&created.error_message, Severity::Error),
        ] {
            let Some(text) = message.as_deref().filter(|message| !message.is_empty()) else {
                continue;
            };
            match severity {
                Severity::Error => tracing::error!("{text}"),
                Severity::Warning => tracing::warn!("{text}"),
                _ => tracing::info!("{text}"),
            }
            connection.tell(|| ServiceMessage::Session {
                severity,
                text: text.to_owned(),
            });
        }
        if options.telemetry() {
            connection.start_telemetry(Some(&created.session_id));
        }
        Ok(Self::attach(connection, created.session_id))
    }

    /// Takes part in a session that exists.
    pub(crate) fn attach(connection: Arc<Connection>, id: SessionId) -> Arc<Self> {
        let runtime = connection.runtime.clone();
        let (cancels, drain) = CancelQueue::new(Arc::clone(&connection));
        let tasks = vec![
            runtime.spawn(heartbeat(Arc::clone(&connection), id.clone())),
            runtime.spawn(refresh_dynamic_config(Arc::clone(&connection))),
            runtime.spawn(drain),
        ];
        tracing::debug!(session.id = %id, "session started");
        Arc::new(Self {
            connection,
            id,
            cancels,
            next_model: AtomicU64::new(0),
            next_sampler: AtomicU64::new(0),
            forward_backward_format: BodyFormat::default(),
            #[cfg(feature = "autodiff")]
            custom_losses: CustomLosses::default(),
            tasks,
        })
    }

    pub(crate) fn next_model(&self) -> u64 {
        self.next_model.fetch_add(1, Ordering::AcqRel)
    }

    pub(crate) fn next_sampler(&self) -> u64 {
        self.next_sampler.fetch_add(1, Ordering::AcqRel)
    }

    #[cfg(feature = "autodiff")]
    pub(crate) fn next_custom_loss(&self) -> u64 {
        self.custom_losses.next.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns the place of a custom loss, which is filled once however often it is created.
    #[cfg(feature = "autodiff")]
    pub(crate) fn custom_loss(&self, key: String) -> Arc<OnceCell<CustomLossHandle>> {
        let mut created = crate::lock::lock(&self.custom_losses.created);
        Arc::clone(created.entry(key).or_default())
    }

    /// Tells the server how the session ended, then stops whatever it has running.
    pub(crate) async fn finish(
        &self,
        reason: FinishReason,
        detail: Option<String>,
    ) -> Result<(), Error> {
        let request = FinishSessionRequest { reason, detail };
        let call = Call::at(&endpoint::FINISH_SESSION, &self.id).json(&request);
        let finished = self.connection.call(&call).await;
        self.stop();
        self.connection.lifecycle.end();
        self.connection.lifecycle.close_telemetry(reason).await;
        finished.map(drop)
    }

    /// Stops without a word to the server, which notices when the heartbeats stay away.
    pub(crate) fn abandon(&self) {
        self.connection.close();
        self.stop();
        self.connection.lifecycle.end();
    }

    fn stop(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Tells the server every ten seconds that we are here, until it says that the session is over.
async fn heartbeat(connection: Arc<Connection>, session_id: SessionId) {
    let request = SessionHeartbeatRequest { session_id };
    let mut heard = Instant::now();
    loop {
        tokio::time::sleep(HEARTBEAT_EVERY).await;
        let call = Call::new(&endpoint::SESSION_HEARTBEAT)
            .json(&request)
            .policy(Policy::ONCE)
            .timeout(HEARTBEAT_EVERY);
        match connection.call(&call).await {
            Ok(_) => heard = Instant::now(),
            Err(error) if error.status() == Some(410) => {
                tracing::info!(session.id = %request.session_id, "the session is finished");
                connection.tell(|| ServiceMessage::SessionEnded);
                return;
            }
            Err(error) if heard.elapsed() >= HEARTBEAT_WARN_AFTER => {
                let silent = heard.elapsed();
                let seconds = silent.as_secs();
                tracing::warn!(session.id = %request.session_id, %error, "no heartbeat for {seconds} s");
                connection.tell(|| ServiceMessage::NoHeartbeat {
                    silent,
                    cause: error.to_string(),
                });
            }
            Err(_) => {}
        }
    }
}

async fn refresh_dynamic_config(connection: Arc<Connection>) {
    loop {
        let interval = Duration::from_secs(connection.server.dynamic_config().refresh_interval_sec);
        tokio::time::sleep(interval.max(MIN_REFRESH)).await;
        match connection.fetch_dynamic_config(Policy::ONCE).await {
            Ok(config) => connection.server.set_dynamic_config(config),
            Err(error) => tracing::debug!(%error, "kept the old dynamic config"),
        }
    }
}
