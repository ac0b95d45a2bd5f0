//! Opening connections: through a proxy if the environment names one, with TLS if the URL says so.
//!
//! A server on this machine is reached directly, whatever the environment says: to a proxy on another
//! machine, `127.0.0.1` is another host.

use crate::BoxError;
use crate::server_url::is_loopback_host;
use http::header::HeaderValue;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Uri, header};
use hyper::rt::{Read, Write};
use hyper::service::Service;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 3;

/// An open connection, whatever it is made of.
pub(crate) trait Stream: Read + Write + Unpin + Send {}

impl<T: Read + Write + Unpin + Send> Stream for T {}

/// A connection and what is spoken on it.
pub(crate) struct Opened {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) http2: bool,
}

/// Opens connections for a pool.
pub(crate) trait Connect {
    /// Returns whether connections may turn out to serve many requests at a time.
    fn may_be_http2(&self) -> bool;

    /// Opens a connection.
    fn open(&self) -> impl Future<Output = Result<Opened, BoxError>> + Send;

    /// Says in a request where it goes, in the way of the connection that it goes out on.
    fn address(&self, uri: &mut Uri, headers: &mut HeaderMap, http2: bool);
}

/// The server: what comes before the path in its URLs.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    scheme: Scheme,
    authority: Authority,
    host: HeaderValue,
}

impl Origin {
    pub(crate) fn new(url: &Url) -> Option<Self> {
        let host = url.host_str()?;
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Some(Self {
            scheme: url.scheme().parse().ok()?,
            host: HeaderValue::from_str(&authority).ok()?,
            authority: authority.parse().ok()?,
        })
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Returns whether the server is on this machine.
    fn is_loopback(&self) -> bool {
        is_loopback_host(self.authority.host())
    }

    fn uri(&self, path: PathAndQuery) -> Uri {
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .expect("all parts are there and valid")
    }
}

/// Opens connections to one server.
#[derive(Debug)]
pub(crate) struct Connector {
    origin: Origin,
    proxy: Option<Intercept>,
    tcp: HttpConnector,
    tls: Arc<rustls::ClientConfig>,
    proxy_tls: Arc<rustls::ClientConfig>,
}

impl Connector {
    /// Sets up connections that speak HTTP/2 if they may and the server wants to.
    pub(crate) fn new(
        origin: Origin,
        proxies: &Matcher,
        mut tls: rustls::ClientConfig,
        http2: bool,
    ) -> Self {
        let http1_alone = vec![b"http/1.1".to_vec()];
        let mut proxy_tls = tls.clone();
        proxy_tls.alpn_protocols = http1_alone.clone();
        tls.alpn_protocols = if http2 {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        } else {
            http1_alone
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // A peer that is gone without a word is noticed within a minute.
        tcp.set_keepalive(Some(KEEP_ALIVE));
        tcp.set_keepalive_interval(Some(KEEP_ALIVE));
        tcp.set_keepalive_retries(Some(KEEP_ALIVE_PROBES));
        let proxy = if origin.is_loopback() {
            None
        } else {
            proxies.intercept(&origin.uri(PathAndQuery::from_static("/")))
        };
        Self {
            proxy,
            origin,
            tcp,
            tls: Arc::new(tls),
            proxy_tls: Arc::new(proxy_tls),
        }
    }

    async fn open_in_time(&self) -> Result<Opened, BoxError> {
        let origin = self.origin.uri(PathAndQuery::from_static("/"));
        let tcp = self.tcp.clone();
        let Some(proxy) = &self.proxy else {
            let direct = HttpsConnector::from((tcp, Arc::clone(&self.tls)));
            return Ok(opened(TowerToHyperService::new(direct).call(origin).await?));
        };
        let to_proxy = HttpsConnector::from((tcp, Arc::clone(&self.proxy_tls)));
        if !self.origin.is_https() {
            let to_proxy = TowerToHyperService::new(to_proxy);
            return Ok(opened(to_proxy.call(proxy.uri().clone()).await?));
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), to_proxy);
        if let Some(credential) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credential.clone());
        }
        let through = HttpsConnector::from((tunnel, Arc::clone(&self.tls)));
        Ok(opened(
            TowerToHyperService::new(through).call(origin).await?,
        ))
    }
}

impl Connect for Connector {
    fn may_be_http2(&self) -> bool {
        self.origin.is_https() && self.tls.alpn_protocols.len() > 1
    }

    async fn open(&self) -> Result<Opened, BoxError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, self.open_in_time()).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("no connection in {} s", CONNECT_TIMEOUT.as_secs()).into()),
        }
    }

    fn address(&self, uri: &mut Uri, headers: &mut HeaderMap, http2: bool) {
        // What a plain proxy gets it must be able to pass on.
        let forwarded = self.proxy.as_ref().filter(|_| !self.origin.is_https());
        if let Some(credential) = forwarded.and_then(Intercept::basic_auth) {
            headers.insert(header::PROXY_AUTHORIZATION, credential.clone());
        }
        let path = uri.path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if http2 || forwarded.is_some() {
            *uri = self.origin.uri(path);
        } else {
            *uri = Uri::from(path);
        }
        if http2 {
            headers.remove(header::HOST);
        } else {
            headers.insert(header::HOST, self.origin.host.clone());
        }
    }
}

fn opened(stream: impl Stream + Connection + 'static) -> Opened {
    Opened {
        http2: stream.connected().is_negotiated_h2(),
        stream: Box::new(stream),
    }
}

/// Trusts what the operating system trusts. Without any such certificates nothing is trusted,
/// which still serves local servers without TLS.
pub(crate) fn tls_config() -> rustls::ClientConfig {
    use rustls_platform_verifier::BuilderVerifierExt;
    let builder = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring serves the default versions")
    };
    match builder().with_platform_verifier() {
        Ok(verified) => verified.with_no_client_auth(),
        Err(error) => {
            tracing::warn!(%error, "no certificates to trust: https servers cannot be reached");
            builder()
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a request to `/v1/x?y=z` says of where it goes.
    fn addressed(base_url: &str, proxy: &str, http2: bool) -> (String, HeaderMap) {
        let origin = Origin::new(&base_url.parse().unwrap()).unwrap();
        let proxies = Matcher::builder().all(proxy).no("local.test").build();
        let connector = Connector::new(origin, &proxies, tls_config(), true);
        let mut uri = Uri::from_static("/v1/x?y=z");
        let mut headers = HeaderMap::new();
        connector.address(&mut uri, &mut headers, http2);
        (uri.to_string(), headers)
    }

    #[tokio::test]
    async fn a_request_says_where_it_goes_in_the_way_of_its_connection() {
        let proxy = "http://user:word@proxy.test:3128";
        let full = |host| format!("{host}/v1/x?y=z");
        let cases = [
            // (base URL, proxy, HTTP/2, target, is the proxy told who asks?)
            ("http://a.test", "", false, full(""), false),
            ("https://a.test:8443", "", false, full(""), false),
            ("https://a.test", "", true, full("https://a.test"), false),
            (
                "http://a.test:81",
                proxy,
                false,
                full("http://a.test:81"),
                true,
            ),
            ("https://a.test", proxy, false, full(""), false),
            ("https://a.test", proxy, true, full("https://a.test"), false),
            ("http://local.test", proxy, false, full(""), false),
            ("http://127.0.0.1:8000", proxy, false, full(""), false),
            ("http://[::1]:8000", proxy, false, full(""), false),
            ("http://localhost", proxy, false, full(""), false),
        ];
        for (base_url, proxy, http2, target, told) in cases {
            let (uri, headers) = addressed(base_url, proxy, http2);
            let case = format!("{base_url} by `{proxy}`, HTTP/2 {http2}");
            assert_eq!(uri, target, "{case}");
            assert_eq!(
                headers.contains_key(header::PROXY_AUTHORIZATION),
                told,
                "{case}"
            );
            assert_eq!(headers.contains_key(header::HOST), !http2, "{case}");
        }
        let (_, headers) = addressed("http://a.test:81", "", false);
        assert_eq!(headers[header::HOST], "a.test:81");
    }
}
