//! One API call: send, read, and retry as its policy says.

use super::Connection;
use super::retry::{self, Decision, Failure, Policy};
use super::stats::{Counters, InFlight};
use super::transport::Pool;
use crate::Error;
use crate::error::BoxError;
use crate::telemetry::named::CallFailed;
use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use reqwest::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    LOCATION,
};
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::time::Duration;
use tinkrs_types::QueueStatus;
use tinkrs_wire::op::retrieve_future::queue_status;
use tinkrs_wire::{Body, ErrorBody, header};
use tokio::time::Instant;
use tracing::Instrument;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// No result is larger; a longer answer is a fault or an attack.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// What a request carries.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    None,
    Json(Bytes),
    Message { body: Bytes, zstd: bool },
}

/// A call that has been described but not made.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) method: Method,
    pub(crate) path: Cow<'static, str>,
    pub(crate) payload: Payload,
    pub(crate) headers: HeaderMap,
    pub(crate) accept: &'static str,
    pub(crate) pool: Pool,
    pub(crate) timeout: Duration,
    pub(crate) policy: Policy,
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
            headers: HeaderMap::new(),
            accept: header::JSON,
            pool: Pool::Shared,
            timeout: TIMEOUT,
            policy: Policy::FIVE_MINUTES,
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
        self.headers.insert(HeaderName::from_static(name), value);
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
    /// There is no credential to send, or the request cannot be formed.
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

impl Connection {
    /// Makes a call and reads its JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let operation = call.operation;
        self.call(call).await?.json(operation)
    }

    /// Makes a call, retrying as its policy says.
    pub(crate) async fn call(&self, call: Call) -> Result<Answer, Error> {
        let span = tracing::debug_span!("call", operation = call.operation);
        self.call_in_span(call).instrument(span).await
    }

    /// Makes a call that a billing block ends at once.
    pub(crate) async fn call_without_pause(&self, call: Call) -> Result<Answer, Error> {
        match self.attempt(&call, None, 0).await {
            Err(
                fault @ Fault::Status {
                    status: StatusCode::PAYMENT_REQUIRED,
                    ..
                },
            ) => Err(self.error(&call, fault, 0)),
            Err(_) => self.call(call).await,
            Ok(answer) => Ok(answer),
        }
    }

    async fn call_in_span(&self, call: Call) -> Result<Answer, Error> {
        let key = idempotency_key(&call);
        let start = Instant::now();
        let mut retries = 0;
        loop {
            let fault = match self.attempt(&call, key.as_ref(), retries).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let failure = match &fault {
                Fault::Local(_) => return Err(self.error(&call, fault, retries)),
                Fault::Status { status, .. } if status.as_u16() == 402 => {
                    // Paused tries do not count against the call's patience.
                    if self.billing_may_pause() {
                        tokio::time::sleep(super::billing::PAUSE).await;
                        continue;
                    }
                    return Err(self.error(&call, fault, retries));
                }
                Fault::Status {
                    status, headers, ..
                } => Failure::Status(*status, headers),
                Fault::Connection(_) | Fault::Timeout => Failure::Transport,
            };
            let random = fastrand::f64();
            self.report_failure(&call, &fault, retries, start);
            match retry::decide(
                call.policy,
                failure,
                retries,
                start.elapsed(),
                Timestamp::now(),
                random,
            ) {
                Decision::GiveUp => return Err(self.error(&call, fault, retries)),
                Decision::RetryAfter(delay) => {
                    tracing::debug!(?fault, retries, ?delay, "retrying");
                    self.counters
                        .retries
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    retries += 1;
                    tokio::time::sleep(delay).await;
                }
            }
        }
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
        let request = self
            .request(call, idempotency_key, retries)
            .await
            .map_err(Fault::Local)?;
        let clients = self.transport.pool(call.pool);
        let lease = clients.lease();
        let _in_flight = InFlight::new(&self.counters);
        if let Some(body) = request.body().and_then(reqwest::Body::as_bytes) {
            Counters::add(&self.counters.bytes_sent, body.len());
        }
        let mut response = lease
            .client
            .execute(request)
            .await
            .map_err(transport_fault)?;
        if let Some(elsewhere) = redirected(&call.method, &response) {
            let request = self
                .transport
                .elsewhere()
                .get(elsewhere)
                .timeout(call.timeout);
            response = request.send().await.map_err(transport_fault)?;
        }
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read_body(response).await?;
        Counters::add(&self.counters.bytes_received, body.len());
        log_deprecation(call.operation, &headers);
        if status.is_success() {
            clients.succeeded();
            return Ok(Answer { headers, body });
        }
        let empty = headers
            .get(CONTENT_LENGTH)
            .is_none_or(|length| length == "0");
        if status == StatusCode::BAD_REQUEST && empty && clients.lost_connection() {
            return Err(Fault::Connection(
                "the connection was reset at the edge (empty 400)".into(),
            ));
        }
        Err(Fault::Status {
            status,
            headers,
            body,
        })
    }

    async fn request(
        &self,
        call: &Call,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<reqwest::Request, Error> {
        let url = format!("{}{}", self.base_url, call.path);
        let url = url.parse().map_err(|_| Error::Setup {
            message: format!("`{url}` is not a URL"),
        })?;
        let mut request = reqwest::Request::new(call.method.clone(), url);
        let headers = request.headers_mut();
        headers.extend(self.default_headers.clone());
        headers.insert(ACCEPT, HeaderValue::from_static(call.accept));
        headers.insert(HeaderName::from_static(header::RETRY_COUNT), retries.into());
        if let Some(key) = idempotency_key {
            headers.insert(
                HeaderName::from_static(header::IDEMPOTENCY_KEY),
                key.clone(),
            );
        }
        headers.insert(
            HeaderName::from_static(header::API_KEY),
            self.credential.header().await?,
        );
        headers.extend(call.headers.clone());
        match &call.payload {
            Payload::None if call.method == Method::GET => {}
            Payload::None => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(header::JSON));
            }
            Payload::Json(body) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(header::JSON));
                *request.body_mut() = Some(body.clone().into());
            }
            Payload::Message { body, zstd } => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(header::PROTOBUF));
                if *zstd {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
                }
                *request.body_mut() = Some(body.clone().into());
            }
        }
        *request.timeout_mut() = Some(call.timeout.min(self.max_timeout));
        Ok(request)
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
                timeout: call.timeout.min(self.max_timeout),
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
    if call.method == Method::GET || call.headers.contains_key(header::IDEMPOTENCY_KEY) {
        return None;
    }
    HeaderValue::from_str(&format!("tinkrs-retry-{}", crate::uuid::v4())).ok()
}

/// Returns where an answer lies, if it is on another origin.
fn redirected(method: &Method, response: &reqwest::Response) -> Option<reqwest::Url> {
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let follows = *method == Method::GET && response.status().is_redirection();
    follows.then(|| response.url().join(location).ok())?
}

fn transport_fault(error: reqwest::Error) -> Fault {
    if error.is_timeout() {
        return Fault::Timeout;
    }
    // The URL is in the client's own error already.
    Fault::Connection(error.without_url().into())
}

async fn read_body(mut response: reqwest::Response) -> Result<Bytes, Fault> {
    let Some(first) = response.chunk().await.map_err(transport_fault)? else {
        return Ok(Bytes::new());
    };
    let Some(second) = response.chunk().await.map_err(transport_fault)? else {
        return Ok(first);
    };
    let mut body = BytesMut::with_capacity(first.len() + second.len());
    body.extend_from_slice(&first);
    body.extend_from_slice(&second);
    while let Some(chunk) = response.chunk().await.map_err(transport_fault)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(Fault::Connection(
                format!("an answer of more than {MAX_ANSWER_BYTES} bytes").into(),
            ));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn log_deprecation(operation: &'static str, headers: &HeaderMap) {
    let Some(note) = headers
        .get(header::DEPRECATION_NOTE)
        .and_then(|note| note.to_str().ok())
    else {
        return;
    };
    match headers
        .get(header::DEPRECATION_LEVEL)
        .is_some_and(|level| level == "error")
    {
        true => tracing::error!(operation, note, "deprecated"),
        false if !note.is_empty() => tracing::warn!(operation, note, "deprecated"),
        false => {}
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
