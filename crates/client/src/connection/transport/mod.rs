//! HTTP connections.
//!
//! A large upload gets a connection of its own, so it never holds up others: uploads use
//! HTTP/1.1. All else shares connections where the server can; see [`pool`].
//!
//! Requests start in small groups. Without that, thousands of samples that are submitted at once
//! would open a connection each before the first answer arrives, and connections cost far more
//! than requests. A request that the server holds makes room for others after a moment, so long
//! polls do not wait for each other.
//!
//! This is hyper without a client on top: there is one server, and its calls are so short that
//! what a general client does for each of them would cost as much as the call.

mod body;
mod connect;
mod pool;
pub(crate) mod redirect;

pub(crate) use body::ACCEPTED_ENCODINGS;

use crate::Error;
use crate::error::BoxError;
use bytes::Bytes;
use connect::{CONNECT_TIMEOUT, Connector, Origin};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::client::proxy::matcher::Matcher;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// No result is larger; a longer answer is a fault or an attack.
pub(crate) const MAX_ANSWER_BYTES: usize = 1 << 30;
pub(crate) const MAX_REDIRECTS: usize = 10;
/// How many requests may be in their first moment at a time.
const STARTING: usize = 16;
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

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Which generation of its pool's connections brought it.
    generation: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection broke, or there was none.
    Connection(BoxError),
    /// The server was silent for too long.
    Timeout,
    /// The answer is longer than any answer may be.
    TooLong,
}

#[derive(Debug)]
pub(crate) struct Transport {
    upload: Lane,
    shared: Lane,
    elsewhere: reqwest::Client,
}

impl Transport {
    /// Sets up the pools. Nothing is connected yet.
    pub(crate) fn new(base_url: &reqwest::Url) -> Result<Self, Error> {
        let origin = Origin::new(base_url).ok_or_else(|| Error::Setup {
            message: format!("`{base_url}` names no server"),
        })?;
        let tls = tls_config();
        let proxies = Matcher::from_system();
        let lane = |http2| Lane::new(Connector::new(origin.clone(), &proxies, tls.clone(), http2));
        Ok(Self {
            upload: lane(false),
            shared: lane(true),
            elsewhere: elsewhere(tls.clone(), origin.is_here())?,
        })
    }

    pub(crate) fn lane(&self, pool: Pool) -> &Lane {
        match pool {
            Pool::Upload => &self.upload,
            Pool::Shared => &self.shared,
        }
    }

    /// Reads what lies elsewhere.
    pub(crate) async fn read_elsewhere(
        &self,
        url: reqwest::Url,
        silence: Duration,
    ) -> Result<Reply, Broken> {
        let sent = self.elsewhere.get(url).send();
        // The URL is not the one that the caller knows.
        let sent = async { sent.await.map_err(reqwest::Error::without_url) };
        let response = body::within(silence, sent).await?;
        let (head, body) = Response::from(response).into_parts();
        Ok(Reply {
            status: head.status,
            headers: head.headers,
            body: body::read(body, silence, MAX_ANSWER_BYTES).await?,
            generation: 0,
        })
    }

    /// Returns a client for what lies elsewhere and must not see the credential: files behind
    /// signed links, and answers that the server redirects to. It adds no headers of its own.
    pub(crate) fn elsewhere(&self) -> &reqwest::Client {
        &self.elsewhere
    }
}

/// The connections of one kind, and what is known of them.
#[derive(Debug)]
pub(crate) struct Lane {
    pool: pool::Pool,
    starting: Semaphore,
    reset_budget: AtomicUsize,
}

impl Lane {
    fn new(connector: Connector) -> Self {
        Self {
            pool: pool::Pool::new(connector),
            starting: Semaphore::new(STARTING),
            reset_budget: AtomicUsize::new(RESET_BUDGET),
        }
    }

    /// Sends a request to the server and reads the whole answer, whatever its status.
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        silence: Duration,
    ) -> Result<Reply, Broken> {
        let exchange = self.pool.exchange(request, silence, MAX_ANSWER_BYTES);
        let reply = exchange.await?;
        if reply.status.is_success() {
            self.succeeded();
        } else if is_from_the_edge(&reply) {
            self.pool.renew(reply.generation);
            if self.spend_reset() {
                let message = "the connection was reset at the edge (empty 400)";
                return Err(Broken::Connection(message.into()));
            }
        }
        Ok(reply)
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
    fn succeeded(&self) {
        if self.reset_budget.load(Ordering::Relaxed) < RESET_BUDGET {
            let more = |budget: usize| (budget < RESET_BUDGET).then_some(budget + 1);
            let _ = self
                .reset_budget
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        }
    }

    /// Returns whether to take another empty 400 for a broken connection.
    fn spend_reset(&self) -> bool {
        let spend = |budget: usize| budget.checked_sub(1);
        self.reset_budget
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, spend)
            .is_ok()
    }
}

/// Whether a 400 comes from a load balancer that has lost the connection, not from the server,
/// which always says what it does not like. The length alone does not tell: it is unknown for
/// compressed answers too.
fn is_from_the_edge(reply: &Reply) -> bool {
    if reply.status != StatusCode::BAD_REQUEST {
        return false;
    }
    match reply.headers.get(CONTENT_LENGTH) {
        Some(length) => length == "0",
        None => {
            serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(&reply.body).is_err()
        }
    }
}

/// Sets up a client for what lies elsewhere. The files of a server on this machine are here, too, and are
/// read `directly`: no proxy finds them.
fn elsewhere(tls: rustls::ClientConfig, directly: bool) -> Result<reqwest::Client, Error> {
    let builder = match directly {
        true => reqwest::Client::builder().no_proxy(),
        false => reqwest::Client::builder(),
    };
    let client = builder
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
        // Retries are ours alone.
        .retry(reqwest::retry::never())
        // Ranges of a file are counted in the bytes that are sent.
        .no_gzip()
        .no_deflate()
        .no_zstd()
        .build();
    client.map_err(|error| Error::Setup {
        message: error.to_string(),
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

    fn transport() -> Transport {
        Transport::new(&"http://localhost".parse().unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_start_in_groups_and_those_that_are_held_make_room() {
        let transport = transport();
        let started = AtomicUsize::new(0);
        let held = || async {
            started.fetch_add(1, Ordering::AcqRel);
            std::future::pending::<()>().await;
        };
        let requests = (0..3 * STARTING).map(|_| transport.shared.paced(|| Box::pin(held())));
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
        let lane = transport().shared;
        for _ in 0..RESET_BUDGET {
            assert!(lane.spend_reset());
        }
        assert!(!lane.spend_reset());
        lane.succeeded();
        assert!(lane.spend_reset(), "a success restores one");
    }

    #[test]
    fn a_400_is_the_edge_s_only_if_the_server_gives_no_reason() {
        let from_edge = |length: Option<&str>, body: &'static str| {
            let length = length.map(|text| (CONTENT_LENGTH, text.parse().unwrap()));
            is_from_the_edge(&Reply {
                status: StatusCode::BAD_REQUEST,
                headers: length.into_iter().collect(),
                body: Bytes::from_static(body.as_bytes()),
                generation: 0,
            })
        };
        assert!(from_edge(Some("0"), ""));
        assert!(from_edge(None, ""));
        assert!(from_edge(None, "<html>400 Bad Request</html>"));
        assert!(!from_edge(Some("18"), r#"{"detail": "rank"}"#));
        assert!(
            !from_edge(None, r#"{"detail": "rank"}"#),
            "compressed answers come without a length"
        );
    }
}
