//! The server's connections, and what can go wrong on them.

use super::reply::Reply;
use super::script::{Effect, Moment};
use super::{Recorded, Shared, route};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Serves connections until it is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let refused = shared.refuses_connection();
        let reset = Arc::new(AtomicBool::new(refused));
        let stream = Resettable {
            stream,
            reset: Arc::clone(&reset),
        };
        if refused {
            continue;
        }
        let _ = stream.stream.set_nodelay(true);
        let (shared, connection) = (Arc::clone(&shared), number);
        number += 1;
        connections.spawn(async move {
            let service = service_fn(|request| {
                let (shared, reset) = (Arc::clone(&shared), Arc::clone(&reset));
                async move {
                    let _complaint = ComplainOnPanic(Arc::clone(&shared));
                    let answer = answer(&shared, connection, request).await;
                    if answer.is_err() {
                        reset.store(true, Ordering::Relaxed);
                    }
                    answer
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // An error here is a connection that one of the two sides cut.
            let _ = connection.await;
        });
    }
}

async fn answer(
    shared: &Arc<Shared>,
    connection: usize,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Cut> {
    let (head, body) = request.into_parts();
    let (endpoint, ids) = route::find(&head.method, head.uri.path());
    let mut recorded = Recorded {
        index: 0,
        connection,
        endpoint,
        method: head.method,
        uri: head.uri,
        headers: head.headers,
        body: Bytes::new(),
        at: Instant::now(),
        ids,
    };
    if let Some((_, effect)) = shared.pick(&recorded, true) {
        match effect {
            Effect::Stall(gate) => {
                shared.record(recorded.clone());
                gate.passed().await;
                return Err(Cut);
            }
            _ => {
                shared.record(recorded);
                return Err(Cut);
            }
        }
    }
    recorded.body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    recorded.index = shared.record(recorded.clone());
    let Some((moment, effect)) = shared.pick(&recorded, false) else {
        return Ok(route::answer(shared, &recorded, None).await.into());
    };
    if moment == Moment::Read {
        match effect {
            Effect::Reply(reply) => {
                shared.refused(&recorded, &reply);
                return Ok(reply.into());
            }
            Effect::Reset => return Err(Cut),
            Effect::Stall(gate) => gate.passed().await,
            Effect::Delay(time) => tokio::time::sleep(time).await,
            Effect::Truncate(_) => {}
            Effect::HoldResult(_) | Effect::FailResult(_) => {
                return Ok(route::answer(shared, &recorded, Some(effect)).await.into());
            }
        }
        return Ok(route::answer(shared, &recorded, None).await.into());
    }
    let reply = route::answer(shared, &recorded, None).await;
    match effect {
        Effect::Reply(other) => Ok(other.into()),
        Effect::Reset => Err(Cut),
        Effect::Truncate(bytes) => Ok(cut_after(reply, bytes)),
        Effect::Stall(gate) => {
            gate.passed().await;
            Ok(reply.into())
        }
        Effect::Delay(time) => {
            tokio::time::sleep(time).await;
            Ok(reply.into())
        }
        Effect::HoldResult(_) | Effect::FailResult(_) => Ok(reply.into()),
    }
}

/// The server cuts the connection instead of answering.
#[derive(Debug)]
struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server cuts the connection")
    }
}

impl std::error::Error for Cut {}

/// A handler that panics makes the server complain, and so the test fail.
struct ComplainOnPanic(Arc<Shared>);

impl Drop for ComplainOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .complain("a handler of the server panicked".to_owned());
        }
    }
}

/// A body that may end before the length that was announced for it.
struct ReplyBody {
    data: Bytes,
    announced: usize,
    sent: bool,
    flushed: bool,
}

impl From<Reply> for Response<ReplyBody> {
    fn from(reply: Reply) -> Self {
        let announced = reply.body.len();
        cut_after(reply, announced)
    }
}

fn cut_after(reply: Reply, bytes: usize) -> Response<ReplyBody> {
    let announced = reply.body.len();
    let body = ReplyBody {
        data: reply.body.slice(..bytes.min(announced)),
        announced,
        sent: false,
        flushed: false,
    };
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    response.body(body).expect("scripts write valid headers")
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let cut = self.data.len() < self.announced;
        if !self.sent {
            self.sent = true;
            return Poll::Ready(Some(Ok(Frame::data(self.data.clone()))));
        }
        if !cut {
            return Poll::Ready(None);
        }
        if !self.flushed {
            // hyper drops what it has not flushed when a body fails, and it flushes when a body
            // makes it wait.
            self.flushed = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(Cut)))
    }

    fn is_end_stream(&self) -> bool {
        self.announced == 0 || (self.sent && self.data.len() == self.announced)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.announced as u64)
    }
}

/// A connection that ends with a reset instead of a goodbye, if told so.
struct Resettable {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Resettable {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Resettable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Resettable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
