//! HTTP to hosts other than the Tinker server: signed links, the Hugging Face Hub.
//!
//! It shares TLS, proxies and connecting with the SDK's own calls, and nothing else. There are few such
//! requests and most are large, so each has a connection of its own, with HTTP/1.1. Proxies are those of
//! the environment (`http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`) and of the system; this machine
//! is reached directly. Redirects are followed, without secrets where they lead to another host. Nothing is
//! decompressed: ranges of a file are counted in the bytes that are sent.
//!
//! No error contains a URL: links may be signed, so anyone who reads one can use it.

pub(crate) mod connect;
mod error;
mod request;
mod response;
mod upload;

pub use error::HttpError;
pub use request::HttpRequest;
pub(crate) use request::basic_auth;
pub use response::HttpResponse;

use connect::{Connect, Connector, Origin};
use http::header::HeaderMap;
use http::{Method, Request, Uri};
use hyper::client::conn::http1;
use hyper_util::client::proxy::matcher::Matcher;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use upload::Upload;
use url::Url;

/// A client for any host. Cloning it is cheap.
#[derive(Clone)]
pub struct HttpClient {
    shared: Arc<Shared>,
}

struct Shared {
    tls: rustls::ClientConfig,
    proxies: Matcher,
    silence: Duration,
}

impl HttpClient {
    /// Makes a client for hosts that may send nothing for up to `silence` at a time. Nothing is connected
    /// yet.
    pub fn new(silence: Duration) -> Self {
        Self::with_tls(connect::tls_config(), silence)
    }

    pub(crate) fn with_tls(tls: rustls::ClientConfig, silence: Duration) -> Self {
        let proxies = Matcher::from_system();
        Self {
            shared: Arc::new(Shared {
                tls,
                proxies,
                silence,
            }),
        }
    }

    /// Describes a request that reads.
    pub fn get(&self, url: &str) -> HttpRequest {
        self.request(Method::GET, url)
    }

    /// Describes a request that creates something.
    pub fn post(&self, url: &str) -> HttpRequest {
        self.request(Method::POST, url)
    }

    /// Describes a request that stores something.
    pub fn put(&self, url: &str) -> HttpRequest {
        self.request(Method::PUT, url)
    }

    /// Describes a request that deletes.
    pub fn delete(&self, url: &str) -> HttpRequest {
        self.request(Method::DELETE, url)
    }

    fn request(&self, method: Method, url: &str) -> HttpRequest {
        HttpRequest::new(self.clone(), method, url)
    }

    /// Sends one request on a connection of its own, and waits for the head of the response.
    async fn exchange(
        &self,
        method: &Method,
        url: &Url,
        mut headers: HeaderMap,
        upload: &Upload,
    ) -> Result<HttpResponse, HttpError> {
        let Shared {
            tls,
            proxies,
            silence,
        } = &*self.shared;
        let origin = Origin::new(url).ok_or(HttpError::InvalidUrl)?;
        let connector = Connector::new(origin, proxies, tls.clone(), false);
        let opened = connector.open().await.map_err(HttpError::Connection)?;
        let (mut sender, connection) = http1::handshake(opened.stream)
            .await
            .map_err(HttpError::connection)?;
        // How the connection ends is reported to the request. Dropping the response closes it.
        tokio::spawn(async move { drop(connection.await) });

        let sent = Arc::new(AtomicU64::new(0));
        let mut request = Request::new(upload.body(Arc::clone(&sent)).await?);
        let mut uri = path_of(url)?;
        connector.address(&mut uri, &mut headers, false);
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let response = sender.send_request(request);
        let response = while_progress(response, *silence, || sent.load(Ordering::Relaxed)).await?;
        let response = response.map_err(HttpError::connection)?;
        Ok(HttpResponse::new(response, *silence))
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("silence", &self.shared.silence)
            .finish_non_exhaustive()
    }
}

fn path_of(url: &Url) -> Result<Uri, HttpError> {
    let query = url.query().map(|query| format!("?{query}"));
    let path = format!("{}{}", url.path(), query.unwrap_or_default());
    path.parse().map_err(|_| HttpError::InvalidUrl)
}

/// Waits for a response for as long as bytes of the request are still being sent, and `silence` longer.
async fn while_progress<F: Future>(
    response: F,
    silence: Duration,
    sent: impl Fn() -> u64,
) -> Result<F::Output, HttpError> {
    let mut response = std::pin::pin!(response);
    let mut before = sent();
    loop {
        if let Ok(output) = tokio::time::timeout(silence, &mut response).await {
            return Ok(output);
        }
        let now = sent();
        if now == before {
            return Err(HttpError::Timeout(silence));
        }
        before = now;
    }
}

#[cfg(test)]
mod tests;
