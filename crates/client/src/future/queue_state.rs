//! Telling a user why nothing happens.

use crate::connection::Connection;
use crate::lock::lock;
use std::sync::Mutex;
use std::time::Duration;
use tinkrs_types::protocol::QueueStatus;
use tinkrs_types::service::QueueState;
use tokio::time::Instant;

const LOG_EVERY: Duration = Duration::from_secs(60);

/// News that the server does not work on something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueNotice {
    /// What waits: a model or a sampling session, by its id.
    pub object: String,
    /// In which state.
    pub state: QueueState,
    /// Why: the server's words if it gave any.
    pub reason: String,
}

/// Watches the queue states of one object and warns about pauses, once a minute at most.
#[derive(Debug)]
pub(crate) struct QueueObserver {
    object: String,
    samples: bool,
    warned: Mutex<Option<Instant>>,
}

impl QueueObserver {
    pub(crate) fn training(object: impl Into<String>) -> Self {
        Self {
            object: object.into(),
            samples: false,
            warned: Mutex::default(),
        }
    }

    pub(crate) fn sampling(object: impl Into<String>) -> Self {
        Self {
            object: object.into(),
            samples: true,
            warned: Mutex::default(),
        }
    }

    /// Takes note of what a poll has seen. A pause holds back all submissions that share the limiter,
    /// for a while.
    pub(crate) fn saw(&self, connection: &Connection, status: &QueueStatus) {
        match status.state {
            QueueState::PausedCapacity | QueueState::PausedRateLimit => {
                connection.server.limiter.queue_paused();
            }
            QueueState::Active => connection.server.limiter.queue_active(),
            _ => {}
        }
        let says_nothing = status.state == QueueState::Unknown && status.reason.is_none();
        if status.state == QueueState::Active || says_nothing {
            return;
        }
        let reason = status
            .reason
            .clone()
            .unwrap_or_else(|| self.default_reason(status.state).to_owned());
        let notice = QueueNotice {
            object: self.object.clone(),
            state: status.state,
            reason,
        };
        if let Some(listener) = &connection.queue_listener {
            // A listener that panics must not cost the result that is waited for.
            let call = std::panic::AssertUnwindSafe(|| listener(&notice));
            if std::panic::catch_unwind(call).is_err() {
                tracing::error!("the listener for queue states panicked");
            }
        }
        if self.may_warn(Instant::now()) {
            tracing::warn!(object = %notice.object, state = %notice.state, reason = %notice.reason, "waiting in a queue");
        }
    }

    fn may_warn(&self, now: Instant) -> bool {
        let mut warned = lock(&self.warned);
        let recent = warned.is_some_and(|last| now.duration_since(last) < LOG_EVERY);
        if !recent {
            *warned = Some(now);
        }
        !recent
    }

    fn default_reason(&self, state: QueueState) -> &'static str {
        match (state, self.samples) {
            (QueueState::PausedRateLimit, false) => {
                "the limit on concurrent training clients is reached"
            }
            (QueueState::PausedRateLimit, true) => {
                "the limit on concurrent sampler weights is reached"
            }
            (QueueState::PausedCapacity, _) => "the backend is short on capacity",
            _ => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackpressureScope, ServiceClient};
    use std::sync::Arc;
    use tinkrs_testkit::ScriptedServer;
    use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL, Reply, not_yet};

    #[test]
    fn warnings_come_once_a_minute_at_most() {
        let observer = QueueObserver::training("m");
        let start = Instant::now();
        assert!(observer.may_warn(start));
        assert!(!observer.may_warn(start + Duration::from_secs(59)));
        assert!(observer.may_warn(start + Duration::from_secs(60)));
    }
    /// Creates a model whose first poll is answered like this, and returns what the listener heard.
    async fn hears(answer: Reply, panics: bool) -> Vec<QueueState> {
        let server = ScriptedServer::start().await;
        server.on("retrieve_future").reply(answer);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&heard);
        let service = ServiceClient::builder()
            .base_url(server.url())
            .api_key(API_KEY)
            .telemetry(false)
            .backpressure(BackpressureScope::Client)
            .on_queue_state(move |notice| {
                listener.lock().unwrap().push(notice.state);
                assert!(!panics, "a fault of the caller's");
            })
            .build();
        let created = service.create_lora_training_client(BASE_MODEL).await;
        assert!(created.is_ok());
        std::mem::take(&mut *lock(&heard))
    }

    #[tokio::test]
    async fn a_listener_that_panics_does_not_cost_the_result() {
        let answer = not_yet("paused_capacity", "busy");
        assert_eq!(hears(answer, true).await, [QueueState::PausedCapacity]);
    }

    #[tokio::test]
    async fn not_yet_without_a_state_or_a_reason_is_no_news() {
        let answer = Reply::json(&serde_json::json!({"type": "try_again"}));
        assert_eq!(hears(answer, false).await, []);
    }
}
