//! One try of a call, redirects included.

use super::Connection;
use super::call::{Answer, Call};
use super::fault::Fault;
use super::stats::{Counters, InFlight};
use super::transport::redirect::{Redirect, redirect};
use super::transport::{MAX_REDIRECTS, Reply};
use crate::Error;
use bytes::Bytes;
use http::Request;
use http::header::{HeaderMap, HeaderValue};
use http_body_util::Full;
use std::borrow::Cow;
use std::time::Duration;
use tinkrs_wire::header;

impl Connection {
    /// Makes one try.
    pub(crate) async fn attempt(
        &self,
        call: &Call,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Answer, Fault> {
        let _in_flight = InFlight::new(&self.counters);
        // What an exchange needs while it is under way is a few kilobytes, so it is only set
        // aside when its turn has come: thousands may wait for theirs.
        let exchange = || Box::pin(self.exchange(call, idempotency_key, retries));
        let reply = self.transport.lane(call.pool).paced(exchange).await?;
        Counters::add(&self.counters.bytes_received, reply.body.len());
        log_deprecation(call.operation, &reply.headers);
        let (status, headers, body) = (reply.status, reply.headers, reply.body);
        match status.is_success() {
            true => Ok(Answer { headers, body }),
            false => Err(Fault::Status {
                status,
                headers,
                body,
            }),
        }
    }

    /// Sends a call's request and reads the whole answer, wherever it is.
    async fn exchange(
        &self,
        call: &Call,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Reply, Fault> {
        let path = match &*self.base_path {
            "" => Cow::Borrowed(&*call.path),
            base_path => Cow::Owned(format!("{base_path}{}", call.path)),
        };
        let request = self.request(call, &path, idempotency_key, retries).await;
        let reply = self.send(call, request).await?;
        if !reply.status.is_redirection() {
            return Ok(reply);
        }
        Box::pin(self.follow(call, reply, &path, idempotency_key, retries)).await
    }

    /// Sends a request, if it could be made, and reads the whole answer.
    async fn send(
        &self,
        call: &Call,
        request: Result<Request<Full<Bytes>>, Error>,
    ) -> Result<Reply, Fault> {
        let request = request.map_err(Fault::Local)?;
        Counters::add(&self.counters.bytes_sent, call.payload.body().len());
        let lane = self.transport.lane(call.pool);
        let reply = lane.exchange(request, self.timeout(call)).await;
        reply.map_err(|broken| Fault::of(call, broken))
    }

    /// Looks where an answer points, and where that points, up to a limit.
    async fn follow(
        &self,
        call: &Call,
        mut reply: Reply,
        path: &str,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Reply, Fault> {
        let mut path = path.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let url = self.url(&path).map_err(Fault::Local)?;
            match redirect(&call.method, &url, reply.status, &reply.headers) {
                None => return Ok(reply),
                Some(Redirect::Elsewhere(url)) => {
                    let reply = self.transport.read_elsewhere(url, self.timeout(call)).await;
                    return reply.map_err(|broken| Fault::of(call, broken));
                }
                Some(Redirect::Within(next)) => {
                    let request = self.request(call, &next, idempotency_key, retries).await;
                    reply = self.send(call, request).await?;
                    path = next;
                }
            }
        }
        Err(Fault::Connection("too many redirects".into()))
    }

    /// Returns how long the server may be silent before a try counts as failed.
    pub(super) fn timeout(&self, call: &Call) -> Duration {
        call.timeout.min(self.max_timeout)
    }
}

fn log_deprecation(operation: &'static str, headers: &HeaderMap) {
    let Some(note) = headers
        .get(header::DEPRECATION_NOTE)
        .and_then(|note| note.to_str().ok())
        .filter(|note| !note.is_empty())
    else {
        return;
    };
    match headers
        .get(header::DEPRECATION_LEVEL)
        .is_some_and(|level| level == "error")
    {
        true => tracing::error!(operation, note, "deprecated"),
        false => tracing::warn!(operation, note, "deprecated"),
    }
}
