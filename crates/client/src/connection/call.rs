//! One API call: send, read, and retry as its policy says.

use super::Connection;
use super::retry::{self, Decision, Failure, Policy};
use super::stats::{Counters, InFlight};
use super::transport::Pool;
use crate::Error;
use crate::error::BoxError;
use crate::telemetry::named::CallFailed;
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
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

impl Connection {
    /// Makes a call and reads its JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let operation = call.operation;
        self.call(call).await?.json(operation)
    }

    /// Makes a call, retrying as its policy says.
    ///
    /// Once the client is closed, only the end of the session and the last reports go out.
    pub(crate) async fn call(&self, call: Call) -> Result<Answer, Error> {
        if !matches!(call.operation, super::TELEMETRY | super::FINISH) {
            self.check_open(call.operation)?;
        }
        let span = tracing::debug_span!("call", operation = call.operation);
        self.call_in_span(call).instrument(span).await
    }

    async fn call_in_span(&self, call: Call) -> Result<Answer, Error> {
        let key = idempotency_key(&call);
        let start = Instant::now();
        let mut retries = 0;
        let mut blocked = Duration::ZERO;
        loop {
            let fault = match self.attempt(&call, key.as_ref(), retries).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let failure = match &fault {
                Fault::Local(_) => return Err(self.error(&call, fault, retries)),
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
            self.report_failure(&call, &fault, retries, start);
            match decision {
                Decision::GiveUp | Decision::WaitForBilling => {
                    return Err(self.error(&call, fault, retries));
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
        // What an exchange needs while it is under way is a few kilobytes, so it is only set
        // aside when its turn has come: thousands may wait for theirs.
        let exchange = || Box::pin(self.exchange(call, &lease.client, request));
        let (status, headers, body) = clients.paced(exchange).await?;
        Counters::add(&self.counters.bytes_received, body.len());
        log_deprecation(call.operation, &headers);
        if status.is_success() {
            clients.succeeded();
            return Ok(Answer { headers, body });
        }
        let lost = status == StatusCode::BAD_REQUEST && is_from_the_edge(&headers, &body);
        if lost && clients.lost_connection() {
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

    /// Sends a request and reads the whole answer.
    async fn exchange(
        &self,
        call: &Call,
        client: &reqwest::Client,
        request: reqwest::Request,
    ) -> Result<(StatusCode, HeaderMap, Bytes), Fault> {
        let silence = self.timeout(call);
        let mut response = within(silence, client.execute(request)).await?;
        if let Some(elsewhere) = redirected(&call.method, &response) {
            let request = self.transport.elsewhere().get(elsewhere);
            response = within(silence, request.send()).await?;
        }
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read_body(response.bytes_stream(), silence, MAX_ANSWER_BYTES);
        let body = body.await.map_err(|stopped| match stopped {
            Stopped::Broken(fault) => fault,
            Stopped::TooLong => {
                let message = format!("more than {MAX_ANSWER_BYTES} bytes");
                Fault::Local(Error::answer(call.operation, message))
            }
        })?;
        Ok((status, headers, body))
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
        let seconds = self.timeout(call).as_secs_f64().to_string();
        if let Ok(seconds) = HeaderValue::try_from(seconds) {
            headers.insert(HeaderName::from_static(header::READ_TIMEOUT), seconds);
        }
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
        Ok(request)
    }

    /// Returns how long the server may be silent before a try counts as failed.
    fn timeout(&self, call: &Call) -> Duration {
        call.timeout.min(self.max_timeout)
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

/// Whether a 400 comes from a load balancer that has lost the connection, not from the server,
/// which always says what it does not like. The length alone does not tell: it is unknown for
/// compressed answers too.
fn is_from_the_edge(headers: &HeaderMap, body: &[u8]) -> bool {
    match headers.get(CONTENT_LENGTH) {
        Some(length) => length == "0",
        None => serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(body).is_err(),
    }
}

/// Waits for the next sign of an answer. A long answer takes as long as it takes, so it is the
/// silence that is bounded.
async fn within<T>(
    silence: Duration,
    answer: impl Future<Output = reqwest::Result<T>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(silence, answer).await {
        Ok(answer) => answer.map_err(transport_fault),
        Err(_) => Err(Fault::Timeout),
    }
}

fn transport_fault(error: reqwest::Error) -> Fault {
    // Without a connection it is not an answer that stays away.
    if error.is_timeout() && !error.is_connect() {
        return Fault::Timeout;
    }
    // The URL is in the client's own error already.
    Fault::Connection(error.without_url().into())
}

/// Why the body of an answer ended early.
#[derive(Debug)]
enum Stopped {
    Broken(Fault),
    TooLong,
}

async fn read_body(
    chunks: impl Stream<Item = reqwest::Result<Bytes>>,
    silence: Duration,
    max_bytes: usize,
) -> Result<Bytes, Stopped> {
    let mut chunks = std::pin::pin!(chunks);
    // Most answers are one chunk, which is not copied.
    let mut first = Bytes::new();
    let mut body = BytesMut::new();
    loop {
        let next = std::future::poll_fn(|cx| chunks.as_mut().poll_next(cx));
        let next = within(silence, async { next.await.transpose() }).await;
        let Some(chunk) = next.map_err(Stopped::Broken)? else {
            break;
        };
        if first.len() + body.len() + chunk.len() > max_bytes {
            return Err(Stopped::TooLong);
        }
        if first.is_empty() && body.is_empty() {
            first = chunk;
            continue;
        }
        body.extend_from_slice(&std::mem::take(&mut first));
        body.extend_from_slice(&chunk);
    }
    Ok(if body.is_empty() {
        first
    } else {
        body.freeze()
    })
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
    #[test]
    fn a_400_is_the_edge_s_only_if_the_server_gives_no_reason() {
        let from_edge = |length: Option<&str>, body: &str| {
            let length = length.map(|text| (CONTENT_LENGTH, HeaderValue::from_str(text).unwrap()));
            is_from_the_edge(&length.into_iter().collect(), body.as_bytes())
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

    #[tokio::test(start_paused = true)]
    async fn a_long_answer_may_take_its_time_but_not_fall_silent() {
        let drip = |pause| {
            futures_util::stream::unfold(0, move |n| async move {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                (n < 5).then_some((Ok(Bytes::from_static(b"ab")), n + 1))
            })
        };
        let read = |pause, max| read_body(drip(pause), Duration::from_secs(45), max);
        assert_eq!(read(40, 10).await.unwrap(), "ababababab");
        assert!(matches!(
            read(50, 10).await,
            Err(Stopped::Broken(Fault::Timeout))
        ));
        assert!(matches!(read(1, 9).await, Err(Stopped::TooLong)));
    }
}
