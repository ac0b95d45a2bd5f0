//! The middleware that lets requests fail.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures_core::Stream;
use http_body_util::BodyExt;

use tinkrs_wire::endpoint;

use super::admin::refuse;
use super::rules::Fault;
use super::{Faults, Strike};
use crate::connections::Peer;

/// Handles a request, unless a rule has something else in mind.
///
/// It goes around all routes: `Router::layer(middleware::from_fn_with_state(faults, inject))`.
pub(crate) async fn inject(State(faults): State<Faults>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // The way to end all faults has none.
    let strike = if path == endpoint::CLEAR_FAULTS.path {
        None
    } else {
        faults.decide(request.method(), path)
    };
    let Some(mut strike) = strike else {
        return next.run(request).await;
    };
    tracing::info!(rule = strike.rule, fault = ?strike.fault, path, "injected a fault");
    tokio::time::sleep(strike.delay).await;
    if strike.fault == Fault::Delay {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<ConnectInfo<Peer>>().cloned();
    let answer = if strike.after {
        next.run(request).await
    } else {
        // The body is read and dropped: a client that is still sending would otherwise see the
        // connection end before any status.
        let _ = drain(request.into_body()).await;
        Response::default()
    };
    match strike.fault {
        Fault::Status(status) => refusal(status, &strike),
        Fault::Hang => {
            // It ends when the client hangs up, which drops this future, or when the rule changes.
            let _ = strike.changed.changed().await;
            refusal(StatusCode::SERVICE_UNAVAILABLE, &strike)
        }
        Fault::Cut => cut(answer).await,
        Fault::Reset => match peer {
            Some(ConnectInfo(peer)) => {
                // Writing this answer is what fails.
                peer.reset();
                Response::default()
            }
            None => Response::new(Broken::at_once()),
        },
        Fault::Delay => answer,
    }
}

fn refusal(status: StatusCode, strike: &Strike) -> Response {
    let detail = format!("injected by rules[{}] of the faults", strike.rule);
    let mut response = refuse(status, &detail);
    if let Some(seconds) = strike.retry_after {
        let value = HeaderValue::from_str(&seconds.to_string());
        let value = value.expect("a number is made of visible characters");
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}

/// Ends an answer after half of its bytes.
async fn cut(answer: Response) -> Response {
    let (mut parts, body) = answer.into_parts();
    let Ok(bytes) = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
    else {
        return Response::from_parts(parts, Broken::at_once());
    };
    // The length of the whole, so that the client can tell that something is missing.
    let length = HeaderValue::from(bytes.len().max(1));
    parts.headers.insert(header::CONTENT_LENGTH, length);
    let half = bytes.slice(..bytes.len() / 2);
    Response::from_parts(parts, Broken::after(half))
}

async fn drain(mut body: Body) -> Result<(), axum::Error> {
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}

/// A body that breaks off. The server then closes the connection.
struct Broken {
    bytes: Bytes,
    /// Whether what was written so far had its chance to be sent. Without it, even the status is
    /// lost with the connection.
    sent: bool,
}

impl Broken {
    /// Breaks off before even the status is sent.
    fn at_once() -> Body {
        let bytes = Bytes::new();
        Body::from_stream(Self { bytes, sent: true })
    }

    /// Breaks off after these bytes.
    fn after(bytes: Bytes) -> Body {
        Body::from_stream(Self { bytes, sent: false })
    }
}

impl Stream for Broken {
    type Item = Result<Bytes, &'static str>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.bytes.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.bytes))));
        }
        if !self.sent {
            // The server sends what it has when there is nothing more to write for now.
            self.sent = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err("injected: the answer ends here")))
    }
}
