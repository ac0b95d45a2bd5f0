//! Whether a request was meant for this server: its `Host`.
//!
//! A web page can have its own name resolve to 127.0.0.1 and then call a server on the machine of whoever
//! looks at it (DNS rebinding). The browser sends the page's name as `Host`, so names are taken only from a
//! list: those of loopback, the one of `public_url`, and addresses, which no page can rebind. Ports do not
//! matter. A request without a `Host` is not from a browser, and is taken: checks of load balancers in
//! HTTP/1.0 have none.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Server;
use crate::connections::Peer;
use crate::error::ApiError;

/// Lets requests pass that were meant for this server.
pub(crate) async fn check(State(server): State<Server>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    let is_remote = peer.is_some_and(|ConnectInfo(peer)| !peer.called_loopback());
    let public = server.shared().settings.public_url.as_deref();
    let public = public.map(host_of_url);
    let foreign = named_hosts(&request).find(|host| !is_allowed(host, public, is_remote));
    match foreign {
        None => next.run(request).await,
        Some(host) => ApiError::misdirected(format!(
            "`Host`: found `{}`, expected {}localhost or an address of this server; a server that has another \
             name is told so with `--public-url`",
            host.escape_debug(),
            public.map_or_else(String::new, |name| format!("`{name}`, ")),
        ))
        .into_response(),
    }
}

/// Returns what a request says it is for: its `Host`, and its target where that is a whole URL.
fn named_hosts(request: &Request) -> impl Iterator<Item = String> {
    let headers = request.headers().get_all(header::HOST).into_iter();
    let headers = headers.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    headers.chain(request.uri().authority().map(ToString::to_string))
}

/// Decides whether a `Host` is this server's. Addresses other than loopback's are, where the request did not
/// come over loopback itself: containers are reached at addresses that they do not know.
fn is_allowed(host: &str, public: Option<&str>, is_remote: bool) -> bool {
    let name = without_port(host);
    if public.is_some_and(|public| name.eq_ignore_ascii_case(public)) {
        return true;
    }
    let address = name.parse::<IpAddr>().ok().or_else(|| {
        let inside = name.strip_prefix('[')?.strip_suffix(']')?;
        inside.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    });
    match address {
        Some(address) => is_remote || address.to_canonical().is_loopback(),
        None => {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

/// Returns the host of an address such as `https://train.example.org:8443/tinker`.
fn host_of_url(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    without_port(authority.rsplit('@').next().unwrap_or_default())
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        // The colons of an address in brackets are not in front of a port.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names_and_the_public_one_are_ours_at_any_port() {
        let public = Some(host_of_url("https://Train.example.org:8443/tinker/"));
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "localhost.:8000",
            "app.localhost",
            "127.0.0.1:1",
            "127.8.9.1",
            "[::1]",
            "[::1]:8000",
            "[::ffff:127.0.0.1]:80",
            "train.example.org",
            "train.example.org:443",
        ] {
            assert!(is_allowed(host, public, false), "{host}");
        }
        for host in [
            "",
            ":8000",
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "evillocalhost",
            "127.0.0.1.evil.example",
            "localhost:8000@evil.example",
            "localhost:x",
            "train.example.org.evil",
            "192.168.1.5:8000",
            "0.0.0.0",
            "[::]",
            "[::1",
        ] {
            assert!(!is_allowed(host, public, false), "{host}");
        }
        assert!(!is_allowed("train.example.org", None, false));
    }

    #[test]
    fn an_address_is_ours_where_the_request_came_to_one() {
        for host in ["192.168.1.5:8000", "[2001:db8::1]:80", "127.0.0.1"] {
            assert!(is_allowed(host, None, true), "{host}");
        }
        assert!(!is_allowed("evil.example", None, true));
    }

    #[test]
    fn a_public_url_has_one_host() {
        for (url, host) in [
            ("https://a.b", "a.b"),
            ("http://a.b:8000/x/y", "a.b"),
            ("http://[::1]:8000", "[::1]"),
            ("https://[::1]", "[::1]"),
        ] {
            assert_eq!(host_of_url(url), host);
        }
    }
}
