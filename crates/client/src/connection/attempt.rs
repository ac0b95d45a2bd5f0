//! One try of a call, redirects included.

use super::Connection;
use super::call::{Call, Response};
use super::errors::AttemptError;
use super::policy::FIRST_CONTACT_TIMEOUT;
use super::stats::{Counters, InFlight};
use super::transport::redirect::{Redirect, redirect};
use super::transport::{MAX_REDIRECTS, ReadLimits, Reply};
use crate::otel;
use http::header::HeaderValue;
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
    ) -> Result<Response, AttemptError> {
        otel::trace(
            call,
            retries,
            self.attempt_untraced(call, idempotency_key, retries),
        )
        .await
    }

    async fn attempt_untraced(
        &self,
        call: &Call,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Response, AttemptError> {
        let _in_flight = InFlight::new(&self.counters);
        let path = self.address.path(&call.path);
        let mut reply = self.exchange(call, &path, idempotency_key, retries).await?;
        if reply.status.is_redirection() {
            reply = Box::pin(self.follow(call, reply, path, idempotency_key, retries)).await?;
        }
        Counters::add(&self.counters.bytes_received, reply.body.len());
        self.note_deprecation(call.operation, &reply.headers);
        let (status, headers, body) = (reply.status, reply.headers, reply.body);
        if status.is_success() {
            return Ok(Response { headers, body });
        }
        Err(AttemptError::Status {
            status,
            headers: Box::new(headers),
            body,
        })
    }

    /// Sends a call's request to a path of the server and reads the whole response.
    async fn exchange(
        &self,
        call: &Call,
        path: &str,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Reply, AttemptError> {
        let request = || async {
            let credential = self.credential.header().await?;
            let timeout = self.timeout(call);
            let mut request = self.address.request(call, path, timeout, retries)?;
            let headers = request.headers_mut();
            if let Some(key) = idempotency_key {
                headers.insert(header::IDEMPOTENCY_KEY, key.clone());
            }
            headers.insert(header::API_KEY, credential);
            otel::propagate(headers);
            Counters::add(&self.counters.bytes_sent, call.payload.body().len());
            Ok(request)
        };
        let pool = self.transport.pool(call.traffic);
        let reply = pool.exchange(request, self.read_limits(call)).await?;
        self.lifecycle.answered();
        Ok(reply)
    }

    /// Follows redirects, up to a limit.
    async fn follow(
        &self,
        call: &Call,
        mut reply: Reply,
        path: Cow<'_, str>,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Reply, AttemptError> {
        let mut path = path.into_owned();
        for _ in 0..MAX_REDIRECTS {
            let url = self.address.url(&path).map_err(AttemptError::Unsent)?;
            match redirect(call.method(), &url, reply.status, &reply.headers) {
                None => return Ok(reply),
                Some(Redirect::External(url)) => {
                    let limits = self.read_limits(call);
                    return self.transport.read_external(url, limits).await;
                }
                Some(Redirect::Within(next)) => {
                    reply = self.exchange(call, &next, idempotency_key, retries).await?;
                    path = next;
                }
            }
        }
        Err(AttemptError::TooManyRedirects)
    }

    /// Returns how long a call waits for a response, as the server is told.
    fn timeout(&self, call: &Call) -> Duration {
        let most = self.address.max_timeout;
        most.map_or(call.timeout, |most| call.timeout.min(most))
    }

    /// Returns how long the server may be silent before a try counts as failed: less if it has never
    /// answered, since it may not be there at all.
    pub(super) fn silence(&self, call: &Call) -> Duration {
        let timeout = self.timeout(call);
        if self.lifecycle.has_answered() {
            return timeout;
        }
        timeout.min(FIRST_CONTACT_TIMEOUT)
    }

    fn read_limits(&self, call: &Call) -> ReadLimits {
        ReadLimits {
            silence: self.silence(call),
            max_bytes: call.max_response_bytes,
        }
    }
}
