//! Keeping connections for the next request.
//!
//! An HTTP/1.1 connection serves one request at a time and waits for the next in `idle`. An
//! HTTP/2 connection serves many, but a server bounds how many, so another is opened for every
//! fifty requests under way. Whichever was opened or used longest ago is used last, so that a
//! pool shrinks to what it needs: what was not used for a while is closed.

use super::body::{self, within};

use super::{AttemptError, BoxError, ReadLimits, Reply};
use crate::external::connect::{Connect, Connector, Opened};
use crate::lock;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::TokioExecutor;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How many requests one HTTP/2 connection serves at a time.
const REQUESTS_PER_CONNECTION: usize = 50;

type Body = Full<Bytes>;

/// The connections to one server.
#[derive(Debug)]
pub(super) struct Pool<C = Connector> {
    connector: C,
    open: Mutex<Open>,
    /// Held while a connection opens that others may share, so that they wait for it.
    opening: tokio::sync::Mutex<()>,
    /// Whether the server was found to share no connections.
    http1_only: AtomicBool,
}

#[derive(Debug, Default)]
struct Open {
    /// Counts how often all connections were given up.
    generation: u64,
    /// HTTP/1.1, the last used last.
    idle: VecDeque<Idle>,
    /// HTTP/2, in the order in which they were opened.
    shared: Vec<Shared>,
}

#[derive(Debug)]
struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
}

#[derive(Debug)]
struct Shared {
    sender: http2::SendRequest<Body>,
    requests: Arc<AtomicUsize>,
    used: Instant,
}

/// One request's use of a connection.
struct Lease {
    sender: Sender,
    /// Its place among the requests of a shared connection.
    _share: Option<Share>,
    generation: u64,
    reused: bool,
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// Counts a request on a shared connection for as long as it lives.
struct Share(Arc<AtomicUsize>);

impl Share {
    fn new(requests: &Arc<AtomicUsize>) -> Self {
        requests.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(requests))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<C: Connect> Pool<C> {
    pub(super) fn new(connector: C) -> Self {
        Self {
            http1_only: AtomicBool::new(!connector.may_be_http2()),
            connector,
            open: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Sends a request and reads the whole response.
    pub(super) async fn exchange(
        &self,
        mut request: Request<Body>,
        limits: ReadLimits,
    ) -> Result<Reply, AttemptError> {
        loop {
            let mut lease = within(limits.silence, self.lease()).await?;
            let sent = tokio::time::timeout(limits.silence, self.send(&mut lease, request)).await;
            match sent.map_err(|_| AttemptError::Timeout)? {
                Ok(response) => {
                    let (head, incoming) = response.into_parts();
                    let mut headers = head.headers;
                    let body = body::read(incoming, limits).await?;
                    let body = body::decode(&mut headers, body, limits)?;
                    let generation = lease.generation;
                    self.give_back(lease);
                    return Ok(Reply {
                        status: head.status,
                        headers,
                        body,
                        generation,
                    });
                }
                Err(mut error) => match error.take_message() {
                    // It was closed just when we took it, so nothing of the request went out.
                    Some(unsent) if lease.reused => request = unsent,
                    _ => return Err(AttemptError::Connection(error.into_error().into())),
                },
            }
        }
    }

    /// Gives up all connections, unless that was done since this generation of them.
    pub(super) fn renew(&self, generation: u64) {
        let mut open = self.lock();
        if open.generation == generation {
            *open = Open {
                generation: generation + 1,
                ..Open::default()
            };
        }
    }

    async fn send(
        &self,
        lease: &mut Lease,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let http2 = matches!(lease.sender, Sender::Http2(_));
        let mut uri = std::mem::take(request.uri_mut());
        self.connector
            .address(&mut uri, request.headers_mut(), http2);
        *request.uri_mut() = uri;
        match &mut lease.sender {
            Sender::Http1(sender) => sender.try_send_request(request).await,
            Sender::Http2(sender) => sender.try_send_request(request).await,
        }
    }

    /// Returns a connection that can take a request.
    async fn lease(&self) -> Result<Lease, BoxError> {
        if let Some(lease) = self.reuse().await {
            return Ok(lease);
        }
        // Opening one takes far more state than using one.
        if self.http1_only.load(Ordering::Relaxed) {
            return Box::pin(self.open()).await;
        }
        let _turn = self.opening.lock().await;
        match self.reuse().await {
            Some(lease) => Ok(lease),
            None => Box::pin(self.open()).await,
        }
    }

    async fn reuse(&self) -> Option<Lease> {
        loop {
            let mut lease = self.lock().take()?;
            let ready = match &mut lease.sender {
                Sender::Http1(sender) => sender.ready().await,
                Sender::Http2(sender) => sender.ready().await,
            };
            if ready.is_ok() {
                return Some(lease);
            }
        }
    }

    async fn open(&self) -> Result<Lease, BoxError> {
        let generation = self.lock().generation;
        let Opened { stream, http2 } = self.connector.open().await?;
        self.http1_only.store(!http2, Ordering::Relaxed);
        let (sender, share) = if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            // How a connection ends is reported to its requests.
            tokio::spawn(async move { drop(connection.await) });
            let requests = Arc::default();
            let share = Share::new(&requests);
            let mut open = self.lock();
            if open.generation == generation {
                open.shared.push(Shared {
                    sender: sender.clone(),
                    requests,
                    used: Instant::now(),
                });
            }
            (Sender::Http2(sender), Some(share))
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(async move { drop(connection.await) });
            (Sender::Http1(sender), None)
        };
        Ok(Lease {
            sender,
            _share: share,
            generation,
            reused: false,
        })
    }

    /// Keeps a connection whose answer was read to its end. Others are closed by dropping them.
    fn give_back(&self, lease: Lease) {
        let Sender::Http1(sender) = lease.sender else {
            return;
        };
        let mut open = self.lock();
        if open.generation == lease.generation {
            let since = Instant::now();
            open.idle.push_back(Idle { sender, since });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock::lock(&self.open)
    }
}

impl Open {
    /// Takes a connection with room for a request, and closes those that were idle for long.
    fn take(&mut self) -> Option<Lease> {
        let now = Instant::now();
        let stale = |since: Instant| now.duration_since(since) >= IDLE_TIMEOUT;
        while self.idle.front().is_some_and(|idle| stale(idle.since)) {
            self.idle.pop_front();
        }
        self.shared.retain(|shared| {
            let unused = shared.requests.load(Ordering::Acquire) == 0 && stale(shared.used);
            !unused && !shared.sender.is_closed()
        });
        let (sender, share) = match self.idle.pop_back() {
            Some(idle) => (Sender::Http1(idle.sender), None),
            None => {
                let roomy = |shared: &&mut Shared| {
                    shared.requests.load(Ordering::Acquire) < REQUESTS_PER_CONNECTION
                };
                let shared = self.shared.iter_mut().find(roomy)?;
                shared.used = now;
                let share = Share::new(&shared.requests);
                (Sender::Http2(shared.sender.clone()), Some(share))
            }
        };
        Some(Lease {
            sender,
            _share: share,
            generation: self.generation,
            reused: true,
        })
    }
}

#[cfg(test)]
mod tests;
