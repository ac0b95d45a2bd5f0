//! Requests below the SDK: one at a time, without retries of their own, and with anything in them.
//!
//! A response is read up to a limit. Nothing here judges a status, except [`Wire::accepted`], which waits out a server that says it
//! is busy, as the official client does.

use crate::case::Stop;
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tinkrs::auth::Secret;
use tinkrs::external::{HttpClient, HttpResponse};
use tinkrs_wire::endpoint::Endpoint;
use tinkrs_wire::{SDK_VERSION, header};

/// The official client gives a response this long.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest response that is read.
const MAX_BYTES: usize = 4 << 20;
/// How much of a server's text is repeated in a message.
const SHOWN_CHARS: usize = 160;

/// A server, and the key that it is called with.
#[derive(Debug)]
pub(crate) struct Wire {
    http: HttpClient,
    base_url: String,
    credential: Mutex<Secret>,
    /// How often a server said that it is busy.
    pub(crate) busy: AtomicU64,
}

/// What is sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

/// What came back, whatever it is.
#[derive(Debug)]
pub(crate) struct Reply {
    /// What it is the response to, for messages.
    what: String,
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
}

impl Sent {
    /// A request to an endpoint without ids in its path.
    pub(crate) fn to(endpoint: &Endpoint) -> Self {
        Self::at(endpoint, endpoint.path.to_owned())
    }

    /// A request to an endpoint, at a path of its own.
    pub(crate) fn at(endpoint: &Endpoint, path: String) -> Self {
        Self::new(endpoint.method.clone(), path)
    }

    pub(crate) fn new(method: Method, path: String) -> Self {
        let mut headers = vec![("accept", header::JSON.to_owned())];
        if method != Method::GET {
            headers.push(("content-type", header::JSON.to_owned()));
        }
        Self {
            method,
            path,
            headers,
            body: Bytes::new(),
        }
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.bytes(header::JSON, body.to_string())
    }

    pub(crate) fn bytes(self, content_type: &str, body: impl Into<Bytes>) -> Self {
        let mut sent = self.header("content-type", content_type);
        sent.body = body.into();
        sent
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn query(mut self, query: &str) -> Self {
        self.path = format!("{}?{query}", self.path);
        self
    }
}

impl Wire {
    pub(crate) fn new(base_url: &str, credential: Secret) -> Self {
        Self {
            http: HttpClient::new(SILENCE),
            base_url: base_url.trim_end_matches('/').to_owned(),
            credential: Mutex::new(credential),
            busy: AtomicU64::new(0),
        }
    }

    /// Goes on with another credential.
    pub(crate) fn set_credential(&self, credential: Secret) {
        let mut current = self
            .credential
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *current = credential;
    }

    /// Sends a request once.
    pub(crate) async fn send(&self, sent: &Sent) -> Result<Reply, Stop> {
        let what = format!("{} {}", sent.method, shown(&sent.path));
        let broken = |error: &dyn std::error::Error| {
            let mut text = format!("{what}: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                text.push_str(&format!(": {error}"));
                cause = error.source();
            }
            Stop::Failed(text)
        };
        let url = format!("{}{}", self.base_url, sent.path);
        let request = match sent.method {
            Method::GET => self.http.get(&url),
            Method::PUT => self.http.put(&url),
            Method::DELETE => self.http.delete(&url),
            _ => self.http.post(&url),
        };
        let credential = self
            .credential
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut request = request
            .header(header::PACKAGE_VERSION, SDK_VERSION)
            .header("x-stainless-lang", "rust")
            .secret_header(header::API_KEY, &credential);
        if sent.method != Method::GET {
            let key = format!("stainless-conform-retry-{:032x}", fastrand::u128(..));
            request = request.header(header::IDEMPOTENCY_KEY, &key);
        }
        for (name, value) in &sent.headers {
            request = request.header(name, value);
        }
        let response = request.body(sent.body.clone()).send().await;
        let response = response.map_err(|error| broken(&error))?;
        let status = response.status();
        let content_type = response
            .header("content-type")
            .unwrap_or_default()
            .to_owned();
        let body = read(response)
            .await
            .map_err(|text| Stop::Failed(format!("{what}: {text}")))?;
        Ok(Reply {
            what,
            status,
            content_type,
            body,
        })
    }

    /// Sends a request until the server is not busy with others.
    ///
    /// The same bytes go out each time, with a fresh idempotency key, as in the outer retries of the official client.
    pub(crate) async fn accepted(&self, sent: &Sent) -> Result<Reply, Stop> {
        let mut pause = Duration::from_millis(100);
        loop {
            let reply = self.send(sent).await?;
            if !matches!(reply.status, 429 | 502 | 503 | 504) {
                return Ok(reply);
            }
            self.busy.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// Sends JSON to an endpoint and reads the JSON object that comes back.
    pub(crate) async fn post(&self, endpoint: &Endpoint, body: &Value) -> Result<Value, Stop> {
        self.accepted(&Sent::to(endpoint).json(body))
            .await?
            .object()
    }
}

async fn read(mut response: HttpResponse) -> Result<Bytes, String> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(body.into()),
            Ok(Some(part)) => body.extend_from_slice(part.as_ref()),
            Err(error) => return Err(error.to_string()),
        }
        if body.len() > MAX_BYTES {
            return Err(format!("the response is longer than {MAX_BYTES} bytes"));
        }
    }
}

impl Reply {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the server refuses the request as its sender's fault.
    pub(crate) fn is_refusal(&self) -> bool {
        (400..500).contains(&self.status) && !matches!(self.status, 408 | 429)
    }

    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Whether the server says that it has no such endpoint.
    ///
    /// A 404 can also be about an object that is not there. Frameworks answer unknown paths with a page, nothing, or a bare
    /// "not found".
    pub(crate) fn is_missing_endpoint(&self) -> bool {
        match self.status {
            405 | 501 => true,
            404 => {
                let text = match self.json() {
                    Some(Value::Object(members)) => {
                        let detail = members.get("detail").or(members.get("error"));
                        detail
                            .and_then(Value::as_str)
                            .unwrap_or_default()
                            .to_lowercase()
                    }
                    Some(_) => String::new(),
                    None => return true,
                };
                matches!(text.as_str(), "" | "not found") || says_not_supported(&text)
            }
            400 | 422 => says_not_supported(&self.text().to_lowercase()),
            _ => false,
        }
    }

    /// Ends the case if the server says that it has no such endpoint.
    pub(crate) fn exists(self) -> Result<Self, Stop> {
        if self.is_missing_endpoint() {
            return Err(Stop::NotSupported(self.to_string()));
        }
        Ok(self)
    }

    /// Ends the case unless the request succeeded.
    pub(crate) fn success(self) -> Result<Self, Stop> {
        let reply = self.exists()?;
        if reply.is_success() {
            Ok(reply)
        } else {
            Err(Stop::Failed(reply.to_string()))
        }
    }

    /// Reads the JSON object of a request that succeeded.
    pub(crate) fn object(self) -> Result<Value, Stop> {
        let reply = self.success()?;
        match reply.json() {
            Some(value @ Value::Object(_)) => Ok(value),
            _ => Err(Stop::Failed(format!("{reply}: not a JSON object"))),
        }
    }

    /// Returns the beginning of the body, as text.
    pub(crate) fn text(&self) -> String {
        shown(&String::from_utf8_lossy(&self.body))
    }
}

fn says_not_supported(text: &str) -> bool {
    [
        "not implemented",
        "not supported",
        "unsupported",
        "unknown endpoint",
        "no such endpoint",
    ]
    .iter()
    .any(|words| text.contains(words))
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: status {}", self.what, self.status)?;
        match self.text() {
            text if text.is_empty() => write!(f, " with an empty body"),
            text => write!(f, ": {text}"),
        }
    }
}

/// Returns the beginning of a text that others wrote, on one line and without what a terminal would act on.
pub(crate) fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut text: String = text
        .trim()
        .chars()
        .map(plain)
        .take(SHOWN_CHARS + 1)
        .collect();
    if text.chars().count() > SHOWN_CHARS {
        text = text.chars().take(SHOWN_CHARS).collect();
        text.push('…');
    }
    text
}
