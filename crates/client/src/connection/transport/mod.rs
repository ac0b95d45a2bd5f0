//! HTTP connections.
//!
//! The requests of a model, some of which are large, get a connection each, so they neither hold up
//! others nor wait for them: they use HTTP/1.1. All else shares connections where the server can; see
//! [`pool`].
//!
//! Requests start in small groups. Without that, thousands of samples that are submitted at once
//! would open a connection each before the first response arrives, and connections cost far more
//! than requests. A request that the server holds makes room for others after a moment, so long
//! polls do not wait for each other.
//!
//! This is hyper without a client on top: there is one server, and its calls are so short that
//! what a general client does for each of them would cost as much as the call. Other hosts are
//! reached by [`external`](crate::external), which opens connections in the same way.

mod body;
mod pool;
pub(crate) mod redirect;

pub(crate) use body::{ACCEPTED_ENCODINGS, ReadLimits, read};

use super::errors::AttemptError;
use crate::Error;
use crate::error::BoxError;
use crate::external::HttpClient;
use crate::external::connect::{Connector, Origin, tls_config};
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::proxy::matcher::Matcher;
use pool::Pool;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use url::Url;

pub(crate) const MAX_REDIRECTS: usize = 10;
/// How many requests may be in their first moment at a time.
const STARTING: usize = 16;
/// How long that moment is: a server that responds at once does so within it.
const START: Duration = Duration::from_millis(10);
/// Longer than any download: callers bound the silence of other hosts themselves.
const NO_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How many empty 400s a pool takes for broken connections before it believes them.
const RESET_BUDGET: usize = 16;

/// What a call puts on a connection, which decides which connections it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// The requests of a model, which wait for each other: one connection for each, so that none waits for
    /// anything else.
    Training,
    /// Everything else.
    Shared,
}

/// A response, whatever its status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Which generation of its pool's connections brought it.
    generation: u64,
}

#[derive(Debug)]
pub(crate) struct Transport {
    training: PacedPool,
    shared: PacedPool,
    external: HttpClient,
}

impl Transport {
    /// Sets up the pools. Nothing is connected yet.
    pub(crate) fn new(base_url: &Url) -> Result<Self, Error> {
        let origin = Origin::new(base_url).ok_or_else(|| Error::Setup {
            message: format!("`{base_url}` names no server"),
        })?;
        let tls = tls_config();
        let proxies = Matcher::from_system();
        let pool = |http2| {
            let connector = Connector::new(origin.clone(), &proxies, tls.clone(), http2);
            PacedPool::new(connector)
        };
        let (training, shared) = (pool(false), pool(true));
        Ok(Self {
            training,
            shared,
            external: HttpClient::with_tls(tls, NO_TIMEOUT),
        })
    }

    pub(crate) fn pool(&self, traffic: Traffic) -> &PacedPool {
        match traffic {
            Traffic::Training => &self.training,
            Traffic::Shared => &self.shared,
        }
    }

    /// Reads what is on another host.
    pub(crate) async fn read_external(
        &self,
        url: Url,
        limits: ReadLimits,
    ) -> Result<Reply, AttemptError> {
        let request = self.external.get(url.as_str());
        let response = body::within(limits.silence, request.send()).await?;
        let (status, headers) = (response.status_code(), response.headers().clone());
        let body = body::read(response.into_body(), limits).await?;
        Ok(Reply {
            status,
            headers,
            body,
            generation: 0,
        })
    }

    /// Returns a client for other hosts, which must not see the credential: files behind
    /// signed links, and results that the server redirects to. It adds no headers of its own.
    pub(crate) fn external(&self) -> &HttpClient {
        &self.external
    }
}

/// A pool of connections on which requests start in small groups.
#[derive(Debug)]
pub(crate) struct PacedPool {
    pool: Pool,
    starting: Semaphore,
    reset_budget: AtomicUsize,
}

impl PacedPool {
    fn new(connector: Connector) -> Self {
        Self {
            pool: Pool::new(connector),
            starting: Semaphore::new(STARTING),
            reset_budget: AtomicUsize::new(RESET_BUDGET),
        }
    }

    /// Makes a request when it is its turn to start, sends it and reads the whole response, whatever its
    /// status.
    pub(crate) async fn exchange<F>(
        &self,
        make: impl FnOnce() -> F,
        limits: ReadLimits,
    ) -> Result<Reply, AttemptError>
    where
        F: Future<Output = Result<Request<Full<Bytes>>, Error>>,
    {
        // What an exchange needs while it is under way is a few kilobytes, so it is only allocated
        // when its turn has come: thousands may wait for theirs.
        self.paced(|| {
            Box::pin(async {
                let request = make().await.map_err(AttemptError::Unsent)?;
                self.exchange_now(request, limits).await
            })
        })
        .await
    }

    async fn exchange_now(
        &self,
        request: Request<Full<Bytes>>,
        limits: ReadLimits,
    ) -> Result<Reply, AttemptError> {
        let reply = self.pool.exchange(request, limits).await?;
        if reply.status.is_success() {
            self.succeeded();
        } else if is_from_load_balancer(&reply) {
            self.pool.renew(reply.generation);
            if self.spend_reset() {
                let message = "a load balancer lost the connection (empty 400)";
                return Err(AttemptError::Connection(message.into()));
            }
        }
        Ok(reply)
    }

    /// Starts an exchange when it is its turn, and runs it.
    async fn paced<F: Future>(&self, start: impl FnOnce() -> Pin<Box<F>>) -> F::Output {
        let starting = self.starting.acquire().await;
        let starting = starting.expect("the semaphore is never closed");
        let mut exchange = start();
        tokio::select! {
            biased;
            output = &mut exchange => return output,
            () = tokio::time::sleep(START) => drop(starting),
        }
        exchange.await
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
/// which always gives a reason. The length alone does not tell: it is unknown for
/// compressed responses too.
fn is_from_load_balancer(reply: &Reply) -> bool {
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
        let pool = transport().shared;
        for _ in 0..RESET_BUDGET {
            assert!(pool.spend_reset());
        }
        assert!(!pool.spend_reset());
        pool.succeeded();
        assert!(pool.spend_reset(), "a success restores one");
    }

    #[test]
    fn a_400_is_the_load_balancer_s_only_if_it_gives_no_reason() {
        let from_balancer = |length: Option<&str>, body: &'static str| {
            let length = length.map(|text| (CONTENT_LENGTH, text.parse().unwrap()));
            is_from_load_balancer(&Reply {
                status: StatusCode::BAD_REQUEST,
                headers: length.into_iter().collect(),
                body: Bytes::from_static(body.as_bytes()),
                generation: 0,
            })
        };
        assert!(from_balancer(Some("0"), ""));
        assert!(from_balancer(None, ""));
        assert!(from_balancer(None, "<html>400 Bad Request</html>"));
        assert!(!from_balancer(Some("18"), r#"{"detail": "rank"}"#));
        assert!(
            !from_balancer(None, r#"{"detail": "rank"}"#),
            "compressed responses come without a length"
        );
    }
}
