//! HTTP connections.
//!
//! Two things matter. A large upload gets a connection of its own, so it never holds up others:
//! uploads use HTTP/1.1. And a server bounds the requests of one HTTP/2 connection, so thousands
//! of long polls need many: a pool opens another client for every fifty requests under way.
//!
//! Requests start in small groups. Without that, thousands of samples that are submitted at once
//! would open a connection each before the first answer arrives, and connections cost far more
//! than requests. A request that the server holds makes room for others after a moment, so long
//! polls do not wait for each other.

use crate::Error;
use reqwest::redirect;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_REDIRECTS: usize = 10;
/// How many requests one HTTP/2 client serves at a time.
const REQUESTS_PER_CLIENT: usize = 50;
/// How many requests may be in their first moment at a time.
const STARTING: usize = 32;
/// How long that moment is: a server that answers at once does so within it.
const START: Duration = Duration::from_millis(10);
/// How many empty 400s a pool takes for broken connections before it believes them.
const RESET_BUDGET: usize = 16;

/// Which connections a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// Uploads: one connection for each request.
    Upload,
    /// Everything else.
    Shared,
}

#[derive(Debug)]
pub(crate) struct Transport {
    upload: Clients,
    shared: Clients,
    elsewhere: reqwest::Client,
}

impl Transport {
    /// Sets up the pools. Nothing is connected yet.
    pub(crate) fn new(base_url: &reqwest::Url) -> Result<Self, Error> {
        let tls = tls_config();
        // Without TLS there is no HTTP/2: every request has a connection of its own anyway.
        let per_client = if base_url.scheme() == "https" {
            REQUESTS_PER_CLIENT
        } else {
            usize::MAX
        };
        Ok(Self {
            elsewhere: elsewhere(tls.clone()).map_err(setup_error)?,
            upload: Clients::new(tls.clone(), true, usize::MAX)?,
            shared: Clients::new(tls, false, per_client)?,
        })
    }

    pub(crate) fn pool(&self, pool: Pool) -> &Clients {
        match pool {
            Pool::Upload => &self.upload,
            Pool::Shared => &self.shared,
        }
    }

    /// Returns a client for what lies elsewhere and must not see the credential: files behind
    /// signed links, and answers that the server redirects to. It adds no headers of its own.
    pub(crate) fn elsewhere(&self) -> &reqwest::Client {
        &self.elsewhere
    }
}

/// HTTP clients that share the requests of one pool.
#[derive(Debug)]
pub(crate) struct Clients {
    tls: rustls::ClientConfig,
    http1_only: bool,
    per_client: usize,
    open: Mutex<Vec<Slot>>,
    starting: Semaphore,
    reset_budget: AtomicUsize,
}

#[derive(Clone, Debug)]
struct Slot {
    client: reqwest::Client,
    requests: Arc<AtomicUsize>,
}

/// One request's share of a client.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) client: reqwest::Client,
    requests: Arc<AtomicUsize>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Clients {
    fn new(tls: rustls::ClientConfig, http1_only: bool, per_client: usize) -> Result<Self, Error> {
        let clients = Self {
            tls,
            http1_only,
            per_client,
            open: Mutex::default(),
            starting: Semaphore::new(STARTING),
            reset_budget: AtomicUsize::new(RESET_BUDGET),
        };
        // Building the first one now shows a bad proxy setting at once, and as an error.
        let first = clients.build().map_err(setup_error)?;
        clients.lock().push(Slot {
            client: first,
            requests: Arc::default(),
        });
        Ok(clients)
    }

    /// Returns a client with room for one more request.
    pub(crate) fn lease(&self) -> Lease {
        let mut open = self.lock();
        let roomy = |slot: &&Slot| slot.requests.load(Ordering::Acquire) < self.per_client;
        let slot = match open.iter().find(roomy) {
            Some(slot) => slot.clone(),
            None => {
                // The first one could be built from the same settings; if this one cannot, the
                // first one serves.
                let client = self.build().unwrap_or_else(|_| open[0].client.clone());
                let slot = Slot {
                    client,
                    requests: Arc::default(),
                };
                open.push(slot.clone());
                slot
            }
        };
        slot.requests.fetch_add(1, Ordering::AcqRel);
        Lease {
            client: slot.client,
            requests: slot.requests,
        }
    }

    /// Makes a request when it is its turn to start, and runs it.
    pub(crate) async fn paced<F: Future>(
        &self,
        request: impl FnOnce() -> Pin<Box<F>>,
    ) -> F::Output {
        let starting = self.starting.acquire().await;
        let starting = starting.expect("the semaphore is never closed");
        let mut request = request();
        tokio::select! {
            biased;
            output = &mut request => return output,
            () = tokio::time::sleep(START) => drop(starting),
        }
        request.await
    }

    /// Takes note of a success, which restores trust in the connections.
    pub(crate) fn succeeded(&self) {
        if self.reset_budget.load(Ordering::Relaxed) < RESET_BUDGET {
            let more = |budget: usize| (budget < RESET_BUDGET).then_some(budget + 1);
            let _ = self
                .reset_budget
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        }
    }

    /// Takes note of an empty 400, which load balancers send for connections they have lost.
    ///
    /// Returns whether to treat it as a broken connection. Old connections are not used again.
    pub(crate) fn lost_connection(&self) -> bool {
        if let Ok(client) = self.build() {
            let fresh = Slot {
                client,
                requests: Arc::default(),
            };
            *self.lock() = vec![fresh];
        }
        let spend = |budget: usize| budget.checked_sub(1);
        self.reset_budget
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, spend)
            .is_ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Slot>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn build(&self) -> reqwest::Result<reqwest::Client> {
        let mut tls = self.tls.clone();
        tls.alpn_protocols = match self.http1_only {
            true => vec![b"http/1.1".to_vec()],
            false => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tcp_nodelay(true)
            .redirect(redirect_policy())
            // Retries are ours alone.
            .retry(reqwest::retry::never());
        if self.http1_only {
            builder = builder.http1_only();
        }
        builder.build()
    }
}

fn elsewhere(tls: rustls::ClientConfig) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(redirect::Policy::limited(MAX_REDIRECTS))
        .retry(reqwest::retry::never())
        // Ranges of a file are counted in the bytes that are sent.
        .no_gzip()
        .no_deflate()
        .no_zstd()
        .build()
}

fn setup_error(error: reqwest::Error) -> Error {
    Error::Setup {
        message: error.to_string(),
    }
}

/// Follows redirects within the origin only. Elsewhere the caller decides, since the credential
/// must not travel along.
fn redirect_policy() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let same_origin = attempt
            .previous()
            .last()
            .is_some_and(|from| from.origin() == attempt.url().origin());
        if !same_origin {
            attempt.stop()
        } else if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("too many redirects")
        } else {
            attempt.follow()
        }
    })
}

/// Trusts what the operating system trusts. Without any such certificates nothing is trusted,
/// which still serves local servers without TLS.
fn tls_config() -> rustls::ClientConfig {
    use rustls_platform_verifier::BuilderVerifierExt;
    let builder = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring serves the default versions")
    };
    match builder().with_platform_verifier() {
        Ok(verified) => verified.with_no_client_auth(),
        Err(error) => {
            tracing::warn!(%error, "no certificates to trust: https servers cannot be reached");
            builder()
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_client_is_opened_for_every_fifty_requests_under_way() {
        let transport = Transport::new(&"https://example.com".parse().unwrap()).unwrap();
        let pool = transport.pool(Pool::Shared);
        let leases: Vec<Lease> = (0..120).map(|_| pool.lease()).collect();
        assert_eq!(pool.lock().len(), 3);
        drop(leases);
        assert!(
            pool.lock()
                .iter()
                .all(|slot| slot.requests.load(Ordering::Acquire) == 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn requests_start_in_groups_and_those_that_are_held_make_room() {
        let transport = Transport::new(&"http://localhost".parse().unwrap()).unwrap();
        let pool = transport.pool(Pool::Shared);
        let started = AtomicUsize::new(0);
        let held = || async {
            started.fetch_add(1, Ordering::AcqRel);
            std::future::pending::<()>().await;
        };
        let requests = (0..3 * STARTING).map(|_| pool.paced(|| Box::pin(held())));
        let mut requests = Box::pin(futures_util::future::join_all(requests));
        for groups in 1..=3 {
            let moment = tokio::time::timeout(START / 2, &mut requests);
            assert!(moment.await.is_err());
            assert_eq!(started.load(Ordering::Acquire), groups * STARTING);
            tokio::time::advance(START / 2).await;
        }
    }

    #[test]
    fn empty_400s_are_believed_after_sixteen_in_a_row() {
        let transport = Transport::new(&"http://localhost".parse().unwrap()).unwrap();
        let pool = transport.pool(Pool::Shared);
        for _ in 0..RESET_BUDGET {
            assert!(pool.lost_connection());
        }
        assert!(!pool.lost_connection());
        pool.succeeded();
        assert!(pool.lost_connection(), "a success restores one");
    }
}
