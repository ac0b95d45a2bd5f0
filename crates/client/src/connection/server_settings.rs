//! What the server wants of its clients: its settings, and the limits and pauses that follow from them.

use super::billing::Billing;
use super::credential;
use crate::auth::CredentialSource;
use crate::byte_budget::ByteBudget;
use crate::limiter::{BackpressureScope, Limiter, LimiterKey};
use crate::lock;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig};
use tokio::time::Instant;

/// The server's settings, and what they bound.
#[derive(Debug)]
pub(crate) struct ServerSettings {
    pub(crate) config: ClientConfig,
    dynamic: RwLock<DynamicConfig>,
    pub(crate) limiter: Arc<Limiter>,
    /// Bounds the chunks of `forward_backward` that are being sent.
    pub(crate) upload_bytes: Arc<ByteBudget>,
    /// Bounds the results that were received and not decoded yet.
    pub(crate) result_bytes: Arc<ByteBudget>,
    billing: Billing,
}

impl ServerSettings {
    /// The settings of a server that was not asked for them: nothing is shared, and no 402 is waited out.
    pub(super) fn unknown() -> Self {
        let config = ClientConfig::default();
        let limiter = Limiter::new(config.sample_dispatch_bytes_semaphore_size);
        Self {
            billing: Billing::new(Duration::ZERO),
            ..Self::with_limiter(config, DynamicConfig::default(), limiter)
        }
    }

    pub(super) fn new(
        config: ClientConfig,
        dynamic: DynamicConfig,
        scope: BackpressureScope,
        base_url: &str,
        source: &CredentialSource,
    ) -> Self {
        let sample_bytes = config.sample_dispatch_bytes_semaphore_size;
        let limiter = match scope {
            BackpressureScope::Client => Limiter::new(sample_bytes),
            BackpressureScope::Account => {
                let key = LimiterKey {
                    base_url: base_url.to_owned(),
                    credential_digest: credential::digest(source),
                };
                Limiter::shared(key, sample_bytes)
            }
        };
        Self::with_limiter(config, dynamic, limiter)
    }

    fn with_limiter(config: ClientConfig, dynamic: DynamicConfig, limiter: Arc<Limiter>) -> Self {
        let max_pause = Duration::from_secs(config.billing_exception_max_pause_duration_sec);
        Self {
            dynamic: RwLock::new(dynamic),
            limiter,
            upload_bytes: ByteBudget::new(config.fwdbwd_dispatch_bytes_semaphore_size),
            result_bytes: ByteBudget::new(config.inflight_response_bytes_semaphore_size),
            billing: Billing::new(max_pause),
            config,
        }
    }

    pub(crate) fn dynamic_config(&self) -> DynamicConfig {
        lock::read(&self.dynamic).clone()
    }

    pub(crate) fn set_dynamic_config(&self, config: DynamicConfig) {
        *lock::write(&self.dynamic) = config;
    }

    /// Takes note of a 402 and returns whether to wait and try again. All clients that share the
    /// limiter wait, too.
    pub(super) fn billing_may_pause(&self) -> bool {
        let may_pause = self.billing.may_pause(Instant::now());
        if may_pause {
            self.limiter.refused(0);
        }
        may_pause
    }

    /// Returns how long a billing block is waited out.
    pub(super) fn max_billing_pause(&self) -> Duration {
        self.billing.max_pause
    }
}
