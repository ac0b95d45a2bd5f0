//! One API call: send, read, and retry as its policy says.

use super::Connection;
use super::older::Objection;
use super::retry::{self, Decision, Failure, Policy};
use super::stats::{Counters, InFlight};
use super::transport::redirect::{Redirect, redirect};
use super::transport::{Broken, MAX_ANSWER_BYTES, MAX_REDIRECTS, Pool, Reply};
use crate::Error;
use crate::error::BoxError;
use crate::telemetry::named::CallFailed;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::time::Duration;
use tinkrs_types::QueueStatus;
use tinkrs_wire::op::retrieve_future::queue_status;
use tinkrs_wire::{Body, ErrorBody, header};
use tokio::time::Instant;
use tracing::Instrument;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// What a request carries.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    None,
    Json(Bytes),
    Message { body: Bytes, zstd: bool },
    Archive(Bytes),
}

impl Payload {
    pub(super) fn body(&self) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match self {
            Self::None => &NONE,
            Self::Json(body) | Self::Message { body, .. } | Self::Archive(body) => body,
        }
    }
}

/// A call that has been described but not made.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) method: Method,
    pub(crate) path: Cow<'static, str>,
    pub(crate) payload: Payload,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) accept: &'static str,
    pub(crate) pool: Pool,
    pub(crate) timeout: Duration,
    pub(crate) policy: Policy,
    /// Whether it carries a pass, which older servers take in another form.
    pub(crate) is_pass: bool,
}

impl Call {
    pub(crate) fn new(
        operation: &'static str,
        method: Method,
        path: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            operation,
            method,
            path: path.into(),
            payload: Payload::None,
            headers: Vec::new(),
            accept: header::JSON,
            pool: Pool::Shared,
            timeout: TIMEOUT,
            policy: Policy::FIVE_MINUTES,
            is_pass: false,
        }
    }

    pub(crate) fn get(operation: &'static str, path: impl Into<Cow<'static, str>>) -> Self {
        Self::new(operation, Method::GET, path)
    }

    pub(crate) fn post(
        operation: &'static str,
        path: impl Into<Cow<'static, str>>,
        body: &impl Body,
    ) -> Self {
        Self::new(operation, Method::POST, path).json(body)
    }

    pub(crate) fn json(mut self, body: &impl Body) -> Self {
        self.payload = Payload::Json(body.encode().into());
        self
    }

    pub(crate) fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.push((HeaderName::from_static(name), value));
        self
    }

    /// Adds a query string; nulls are simply not given.
    pub(crate) fn query<'a>(
        mut self,
        pairs: impl IntoIterator<Item = (&'a str, Cow<'a, str>)>,
    ) -> Self {
        let mut encoded = form(pairs);
        if !encoded.is_empty() {
            encoded.insert(0, '?');
            self.path.to_mut().push_str(&encoded);
        }
        self
    }
}

/// Encodes pairs as a query string: unreserved characters as they are, a space as `+`.
fn form<'a>(pairs: impl IntoIterator<Item = (&'a str, Cow<'a, str>)>) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        for (index, part) in [name, &value].into_iter().enumerate() {
            if index == 1 {
                text.push('=');
            }
            for byte in part.bytes() {
                match byte {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                        text.push(byte.into())
                    }
                    b' ' => text.push('+'),
                    _ => text.push_str(&format!("%{byte:02X}")),
                }
            }
        }
    }
    text
}

/// A successful answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn content_type(&self) -> &str {
        self.headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    pub(crate) fn json<T: DeserializeOwned>(&self, operation: &'static str) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| Error::answer(operation, error))
    }
}

/// How one try went wrong.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection broke.
    Connection(BoxError),
    /// The answer took too long.
    Timeout,
    /// The server answered with an error status.
    Status {
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    },
    /// Trying again is of no use: there is no credential to send, the request cannot be formed,
    /// or its answer is too large.
    Local(Error),
}

impl Fault {
    /// Returns what went wrong, without anything that was sent.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Connection(error) => error.to_string(),
            Self::Timeout => "no answer in time".to_owned(),
            Self::Status { body, .. } => ErrorBody::message(body),
            Self::Local(error) => error.to_string(),
        }
    }

    /// Returns the status of the server's answer, if there was one.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(status.as_u16()),
            Self::Connection(_) | Self::Timeout | Self::Local(_) => None,
        }
    }

    /// Returns the queue state that the server's answer tells, if it does.
    pub(crate) fn queue_status(&self) -> Option<QueueStatus> {
        match self {
            Self::Status { body, .. } => queue_status(body),
            Self::Connection(_) | Self::Timeout | Self::Local(_) => None,
        }
    }

    /// Returns the name of this kind of fault.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Connection(_) => "Connection",
            Self::Timeout => "Timeout",
            Self::Status { .. } => "Status",
            Self::Local(_) => "Local",
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Whether the server may have seen the request.
    pub(crate) sent: bool,
}

impl Failed {
    /// Makes the failure of a call that was not made.
    pub(crate) fn unsent(error: impl Into<Error>) -> Self {
        Self {
            error: error.into(),
            sent: false,
        }
    }
}

impl Connection {
    /// Makes a call and reads its JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        self.call(&call).await?.json(call.operation)
    }

    /// Makes a call, retrying as its policy says.
    ///
    /// Once the client is closed, only the end of the session and the last reports go out.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer, Error> {
        self.submit(call).await.map_err(|failed| failed.error)
    }

    /// Makes a call like [`call`](Self::call), and says of a failure whether anything was sent.
    pub(crate) async fn submit(&self, call: &Call) -> Result<Answer, Failed> {
        if !matches!(call.operation, super::TELEMETRY | super::FINISH) {
            self.check_open(call.operation).map_err(Failed::unsent)?;
        }
        let span = tracing::debug_span!("call", operation = call.operation);
        self.call_in_span(call).instrument(span).await
    }

    async fn call_in_span(&self, call: &Call) -> Result<Answer, Failed> {
        let key = idempotency_key(call);
        let mut call = Cow::Borrowed(call);
        let start = Instant::now();
        let mut retries = 0;
        let mut blocked = Duration::ZERO;
        loop {
            let mut fault = match self.attempt(&call, key.as_ref(), retries).await {
                Ok(answer) => return Ok(self.taken(&call, answer)),
                Err(fault) => fault,
            };
            if let Some((objection, older)) = self.pass_form.older(&call, &fault) {
                match self.attempt_older(&older, key.as_ref(), retries).await {
                    Ok(answer) => return Ok(self.taken(&older, answer)),
                    Err(next) if objection == Objection::Refused => {
                        (call, fault) = (Cow::Owned(older), next);
                    }
                    // It was not the form: on with the one that servers of today take.
                    Err(_) => call.to_mut().is_pass = false,
                }
            }
            let call = &*call;
            let failure = match &fault {
                Fault::Local(_) => return Err(self.failed(call, fault, retries)),
                Fault::Status {
                    status, headers, ..
                } => Failure::Status(*status, headers),
                Fault::Connection(_) | Fault::Timeout => Failure::Transport,
            };
            let decision = retry::decide(
                call.policy,
                failure,
                retries,
                start.elapsed().saturating_sub(blocked),
                Timestamp::now(),
                fastrand::f64(),
            );
            if decision == Decision::WaitForBilling && self.billing_may_pause() {
                // A blocked try is not reported, and does not count against the call's patience.
                blocked += super::billing::PAUSE;
                tokio::time::sleep(super::billing::PAUSE).await;
                continue;
            }
            self.report_failure(call, &fault, retries, start);
            match decision {
                Decision::GiveUp | Decision::WaitForBilling => {
                    return Err(self.failed(call, fault, retries));
                }
                Decision::RetryAfter(delay) => {
                    let (kind, status) = (fault.kind(), fault.status());
                    tracing::debug!(kind, status, retries, ?delay, "retrying");
                    self.counters
                        .retries
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    retries += 1;
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }

    /// Makes a try in the older form.
    ///
    /// Servers that break down over a body close the connection behind their answer, so that this try may
    /// meet the end of it. That says nothing about the form.
    async fn attempt_older(
        &self,
        call: &Call,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Answer, Fault> {
        for _ in 0..3 {
            match self.attempt(call, idempotency_key, retries).await {
                Err(Fault::Connection(_)) => {}
                outcome => return outcome,
            }
        }
        self.attempt(call, idempotency_key, retries).await
    }

    /// Takes note of the form in which a server took a pass.
    fn taken(&self, call: &Call, answer: Answer) -> Answer {
        if call.is_pass {
            self.pass_form.taken(call);
        }
        answer
    }

    fn report_failure(&self, call: &Call, fault: &Fault, retries: u32, start: Instant) {
        if call.operation == super::TELEMETRY {
            return;
        }
        self.report(|| {
            let status = match fault {
                Fault::Status { status, .. } => Some(*status),
                Fault::Connection(_) | Fault::Timeout | Fault::Local(_) => None,
            };
            let now = Timestamp::now().as_duration().as_secs_f64();
            let elapsed = start.elapsed().as_secs_f64();
            CallFailed {
                func: call.operation,
                exception: fault.describe(),
                exception_type: fault.kind().to_owned(),
                exception_stack: None,
                status_code: status.map(|status| status.as_u16()),
                is_retryable: status.is_none_or(|status| {
                    matches!(status.as_u16(), 408 | 409 | 429) || status.is_server_error()
                }),
                is_user_error: status
                    .is_some_and(|status| status.is_client_error() && status.as_u16() != 408),
                attempt_count: retries + 1,
                start_time: now - elapsed,
                current_time: now,
                elapsed_time: elapsed,
            }
        });
    }

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
        reply.map_err(|broken| fault(call, broken))
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
                    return reply.map_err(|broken| fault(call, broken));
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

    fn failed(&self, call: &Call, fault: Fault, retries: u32) -> Failed {
        Failed {
            sent: retries > 0 || !matches!(fault, Fault::Local(_)),
            error: self.error(call, fault, retries),
        }
    }

    /// Says what a fault means to the caller once nothing more is tried.
    pub(crate) fn error(&self, call: &Call, fault: Fault, retries: u32) -> Error {
        let operation = call.operation;
        let (url, attempts) = (self.base_url.clone(), retries + 1);
        match fault {
            Fault::Connection(source) => Error::Unreachable {
                operation,
                url,
                attempts,
                source,
            },
            Fault::Timeout => Error::Timeout {
                operation,
                url,
                timeout: self.timeout(call),
                attempts,
            },
            Fault::Status { status, body, .. } => {
                let message = match ErrorBody::message(&body) {
                    message if message.is_empty() => "the server gave no reason".to_owned(),
                    message => message,
                };
                Error::Status {
                    operation,
                    status,
                    message,
                }
            }
            Fault::Local(error) => error,
        }
    }
}

/// The same for every try of a call, so that a server can tell a retry from a new call.
fn idempotency_key(call: &Call) -> Option<HeaderValue> {
    let own = |(name, _): &(HeaderName, _)| *name == header::IDEMPOTENCY_KEY;
    if call.method == Method::GET || call.headers.iter().any(own) {
        return None;
    }
    HeaderValue::try_from(format!("tinkrs-retry-{}", crate::uuid::v4())).ok()
}

/// Says what a broken exchange means to a call.
fn fault(call: &Call, broken: Broken) -> Fault {
    match broken {
        Broken::Connection(error) => Fault::Connection(error),
        Broken::Timeout => Fault::Timeout,
        Broken::TooLong => {
            let message = format!("more than {MAX_ANSWER_BYTES} bytes");
            Fault::Local(Error::answer(call.operation, message))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_encoded_like_a_form() {
        let pairs = [("day", "2026-01-02".into()), ("q", "a b&c:d/é".into())];
        assert_eq!(form(pairs), "day=2026-01-02&q=a+b%26c%3Ad%2F%C3%A9");
        assert_eq!(Call::get("x", "/p").query([]).path, "/p");
    }
}
