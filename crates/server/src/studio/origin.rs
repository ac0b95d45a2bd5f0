//! Who sent a request, as far as a browser tells.
//!
//! `SameSite=Strict` keeps cookies from requests of other sites, but all ports of localhost are one site, and old
//! browsers know none of it. So what a browser says of itself is looked at, too: `Sec-Fetch-Site`, which no page
//! can set, or `Origin`, which none can either.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, header};

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A page of this server.
    OurPage,
    /// The person at the browser: an address that was typed, or a link from outside of any page.
    Person,
    /// A page of another site or port.
    OtherPage,
    /// Nothing tells: no browser, or an old one that reads something.
    Unknown,
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Tells who sent a request. `public` is the address under which clients reach this server, if that has one.
pub(crate) fn sender(headers: &HeaderMap, public: Option<&str>) -> Sender {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    // Pages that say `no-referrer` send `null` with their forms.
    let origin = text(header::ORIGIN).filter(|origin| *origin != "null");
    let is_ours = |origin: &str| is_same(origin, text(header::HOST), public);
    match (text(SEC_FETCH_SITE), origin) {
        (Some("same-origin"), Some(origin)) if !is_ours(origin) => Sender::OtherPage,
        (Some("same-origin"), _) => Sender::OurPage,
        (Some("none"), _) => Sender::Person,
        (Some(_), _) => Sender::OtherPage,
        (None, Some(origin)) if is_ours(origin) => Sender::OurPage,
        (None, Some(_)) => Sender::OtherPage,
        (None, None) if headers.contains_key(header::ORIGIN) => Sender::OtherPage,
        (None, None) => Sender::Unknown,
    }
}

/// Returns the address that a request comes from. It is that of the connection, or, where a proxy with TLS stands in
/// front of this server, the one that the proxy has added to those that its caller claims.
pub(crate) fn address(peer: IpAddr, headers: &HeaderMap, public: Option<&str>) -> IpAddr {
    // This server has no TLS of its own: where its address is `https`, there is a proxy. Nobody else may say who calls.
    let has_proxy = public.is_some_and(|url| url.starts_with("https://"));
    if !has_proxy || !is_near(peer) {
        return peer;
    }
    let last = headers.get_all(FORWARDED_FOR).into_iter().next_back();
    let text = last.and_then(|value| value.to_str().ok());
    let text = text.and_then(|value| value.rsplit(',').next());
    text.and_then(|text| read_address(text.trim()))
        .unwrap_or(peer)
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Whether an address is of this machine or of a network that is not the internet.
fn is_near(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.is_private(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local(),
    }
}

/// Some proxies add the port.
fn read_address(text: &str) -> Option<IpAddr> {
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    text.parse().ok().or_else(with_port)
}

/// Decides whether an origin is where a request was sent to.
fn is_same(origin: &str, host: Option<&str>, public: Option<&str>) -> bool {
    let authority = |url: &str| {
        let (scheme, rest) = url.split_once("://")?;
        let authority = rest.split('/').next()?;
        Some((scheme.to_ascii_lowercase(), authority.to_ascii_lowercase()))
    };
    let Some((scheme, name)) = authority(origin) else {
        return false;
    };
    let is_web = matches!(scheme.as_str(), "http" | "https");
    let is_host = host.is_some_and(|host| !name.is_empty() && host.eq_ignore_ascii_case(&name));
    is_web && is_host || public.and_then(authority) == Some((scheme, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&'static str, &'static str)]) -> Sender {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        sender(&map, Some("https://train.example.org/x"))
    }

    #[test]
    fn a_proxy_says_where_a_request_comes_from_and_nobody_else_does() {
        let of = |peer: &str, public, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            address(peer.parse().unwrap(), &headers, public).to_string()
        };
        let https = Some("https://train.example.org");
        for (lines, expected) in [
            (vec!["198.51.100.7"], "198.51.100.7"),
            // What a caller writes there itself comes first.
            (vec!["1.1.1.1, 198.51.100.7"], "198.51.100.7"),
            (vec!["1.1.1.1", "198.51.100.7"], "198.51.100.7"),
            (vec!["198.51.100.7:5123"], "198.51.100.7"),
            (vec!["[2001:db8::1]:5123"], "2001:db8::1"),
            (vec!["unknown"], "172.18.0.2"),
            (vec![], "172.18.0.2"),
        ] {
            assert_eq!(of("172.18.0.2", https, &lines), expected, "{lines:?}");
        }
        let claim = ["198.51.100.7"];
        assert_eq!(of("::1", https, &claim), "198.51.100.7");
        assert_eq!(of("203.0.113.9", https, &claim), "203.0.113.9");
        assert_eq!(of("127.0.0.1", None, &claim), "127.0.0.1");
        let http = Some("http://train.example.org");
        assert_eq!(of("127.0.0.1", http, &claim), "127.0.0.1");
    }

    #[test]
    fn a_page_of_this_server_is_told_from_all_others() {
        let host = ("host", "localhost:8000");
        for (headers, expected) in [
            (vec![], Sender::Unknown),
            (vec![("sec-fetch-site", "same-origin")], Sender::OurPage),
            (vec![("sec-fetch-site", "none")], Sender::Person),
            // Another port of the same machine.
            (vec![("sec-fetch-site", "same-site")], Sender::OtherPage),
            (vec![("sec-fetch-site", "cross-site")], Sender::OtherPage),
            (vec![("sec-fetch-site", "x")], Sender::OtherPage),
            (vec![("origin", "http://localhost:8000")], Sender::OurPage),
            (vec![("origin", "HTTP://LOCALHOST:8000")], Sender::OurPage),
            (
                vec![("origin", "https://train.example.org")],
                Sender::OurPage,
            ),
            (
                vec![("origin", "http://train.example.org")],
                Sender::OtherPage,
            ),
            (vec![("origin", "http://localhost:3000")], Sender::OtherPage),
            (vec![("origin", "http://localhost")], Sender::OtherPage),
            (
                vec![("origin", "http://localhost:8000.evil")],
                Sender::OtherPage,
            ),
            (vec![("origin", "file://localhost:8000")], Sender::OtherPage),
            (vec![("origin", "null")], Sender::OtherPage),
            (vec![("origin", "")], Sender::OtherPage),
            (
                vec![("origin", "null"), ("sec-fetch-site", "same-origin")],
                Sender::OurPage,
            ),
            (
                vec![("origin", "http://evil"), ("sec-fetch-site", "same-origin")],
                Sender::OtherPage,
            ),
            (
                vec![
                    ("origin", "http://localhost:8000"),
                    ("sec-fetch-site", "cross-site"),
                ],
                Sender::OtherPage,
            ),
        ] {
            let headers = [headers, vec![host]].concat();
            assert_eq!(of(&headers), expected, "{headers:?}");
        }
    }
}
