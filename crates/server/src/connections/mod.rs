//! Connections: how many, for how long, and what they are answered when there are too many.
//!
//! Nobody who does nothing keeps others out. A connection has to send the head of a request soon after it was
//! opened, a body has to come and a response has to be taken at some pace ([`StallTimeout`]), and one that waits
//! for its next request is closed after a while. How long a request is worked on is not limited: polls wait.
//!
//! At the limit, a new connection takes the place of the one that has been idle for longest, or else of the one
//! that has owed the head of a request for longest ([`Table`]). If all of them are busy, a few more are accepted
//! to be told about the server's health, and for everything else that they should come back.

mod open_files;
mod response;
mod stall_timeout;
mod stream;
mod table;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, Response, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tinkrs_wire::endpoint;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub(crate) use stall_timeout::TooSlow;
pub(crate) use stream::Peer;

use crate::error::ApiError;
use crate::lock::lock;
use crate::settings::Settings;
use response::WithEnd;
use stall_timeout::{PacedBody, StallTimeout};
use stream::Connection;
use table::{Admission, Phase, Table};

/// How long the listener rests when the system has no more sockets to give.
const REST: Duration = Duration::from_millis(50);
/// How often that is logged at most.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How long a connection beyond the limit has for the head of its request.
const RESERVED_TIMEOUT: Duration = Duration::from_secs(2);

/// How many connections there may be, and how long they may take for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) idle_timeout: Duration,
}

impl From<&Settings> for Limits {
    fn from(settings: &Settings) -> Self {
        Self {
            connections: settings.connections,
            header_timeout: settings.header_timeout,
            body_timeout: settings.body_timeout,
            write_timeout: settings.write_timeout,
            idle_timeout: settings.idle_timeout,
        }
    }
}

/// Accepts connections and answers their requests until `closing` is true, and then until the last request
/// under way has its response.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    mut limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    limits.connections = limits.connections.min(open_files::for_connections());
    let open = Arc::new(Open {
        router: TowerToHyperService::new(router),
        limits,
        table: Mutex::new(Table::new(limits.connections)),
        closing: closing.clone(),
    });
    // Every task holds a receiver, so the channel is closed when the last one has ended.
    let (ended, running) = watch::channel(());
    let mut logged: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let (open, running) = (Arc::clone(&open), running.clone());
                let admission = lock(&open.table).admit(Instant::now());
                if let Some(admission) = admission {
                    tokio::spawn(async move {
                        open.answer(stream, address, admission).await;
                        drop(running);
                    });
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Most likely there are too many open files. A place becomes free when somebody leaves.
                lock(&open.table).evict();
                if logged.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
                    logged = Some(Instant::now());
                    tracing::error!(%error, "could not accept a connection; `ulimit -n` limits open files");
                }
                tokio::time::sleep(REST).await;
            }
        }
    }
    drop((listener, running));
    ended.closed().await;
}

/// Returns whether an error is about a connection that is gone already, and not about the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// What all connections share.
struct Open {
    router: TowerToHyperService<Router>,
    limits: Limits,
    table: Mutex<Table>,
    closing: watch::Receiver<bool>,
}

impl Open {
    /// Answers the requests of a connection until it ends.
    async fn answer(self: Arc<Self>, stream: TcpStream, address: SocketAddr, admission: Admission) {
        let _ = stream.set_nodelay(true);
        let mut limits = self.limits;
        if admission.is_reserved {
            limits.header_timeout = limits.header_timeout.min(RESERVED_TIMEOUT);
        }
        let place = Arc::new(Place {
            id: admission.id,
            open: Arc::clone(&self),
            changed: Notify::new(),
        });
        let stream = Connection::new(stream, address, limits.write_timeout, Arc::clone(&place));
        let (stream, peer) = stream;
        let service = service_fn(|request| {
            place.note(Phase::Busy);
            self.respond(request, peer.clone(), &place, admission.is_reserved)
        });
        let connection = http1::Builder::new()
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut closing = self.closing.clone();
        tokio::select! {
            _ = connection.as_mut() => return,
            () = admission.end.notified() => return,
            () = place.overdue(&limits) => return,
            _ = closing.wait_for(|closing| *closing) => {}
        }
        // Whoever has a request under way gets the response.
        if place.is_busy() {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }

    fn respond(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        place: &Arc<Place>,
        is_reserved: bool,
    ) -> impl Future<Output = Result<Response<WithEnd>, Infallible>> + use<> {
        let (place, router) = (Arc::clone(place), self.router.clone());
        let stall_timeout = StallTimeout::new(self.limits.body_timeout);
        async move {
            let is_read = Arc::<AtomicBool>::default();
            let body_is_read = Arc::clone(&is_read);
            let mut request = request.map(|body| PacedBody::new(body, stall_timeout, body_is_read));
            request.extensions_mut().insert(ConnectInfo(peer));
            let is_health = [endpoint::HEALTHZ.path, endpoint::GET_METRICS.path]
                .contains(&request.uri().path());
            let mut response = if is_reserved && !is_health {
                overloaded()
            } else {
                router.call(request).await?
            };
            // What was refused before its body was read leaves the rest of it in the way of the next request: the connection
            // ends, and a client that is not told would send its next request into it.
            if is_reserved || !is_read.load(Ordering::Relaxed) {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok(response.map(|body| WithEnd::new(body, move || place.note_idle())))
        }
    }
}

fn overloaded() -> Response<Body> {
    let detail =
        "too many connections are open, and all of them are busy: try again a little later";
    let mut response = ApiError::unavailable(detail).into_response();
    let second = HeaderValue::from_static("1");
    response.headers_mut().insert(header::RETRY_AFTER, second);
    response
}

/// A connection's place in the table. It is free again when this is dropped.
struct Place {
    id: u64,
    open: Arc<Open>,
    /// Told when the connection is at something else.
    changed: Notify,
}

impl Place {
    fn note(&self, phase: Phase) {
        lock(&self.open.table).note(self.id, phase);
        self.changed.notify_one();
    }

    /// Notes that something was read: after a response, it is the next request.
    fn note_first_byte(&self) {
        if matches!(self.phase(), Phase::Idle(_)) {
            self.note(Phase::Waiting(Instant::now()));
        }
    }

    /// Completes when a request, or its head, has not come in time.
    async fn overdue(&self, limits: &Limits) {
        loop {
            let phase = self.phase();
            let end = match phase {
                // Its body and its response have times of their own.
                Phase::Busy => {
                    self.changed.notified().await;
                    continue;
                }
                Phase::Waiting(since) => since + limits.header_timeout,
                Phase::Idle(since) => since + limits.idle_timeout,
            };
            tokio::select! {
                () = tokio::time::sleep_until(end) => {
                    if self.phase() == phase {
                        return;
                    }
                }
                () = self.changed.notified() => {}
            }
        }
    }

    fn note_idle(&self) {
        self.note(Phase::Idle(Instant::now()));
    }

    fn phase(&self) -> Phase {
        lock(&self.open.table).phase(self.id)
    }

    fn is_busy(&self) -> bool {
        matches!(self.phase(), Phase::Busy)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.open.table).remove(self.id);
    }
}

#[cfg(test)]
mod tests;
