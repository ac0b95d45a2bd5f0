//! Who sent a request, as far as a browser tells.
//!
//! `SameSite=Strict` keeps cookies from requests of other sites, but all ports of localhost are one site, and old
//! browsers know none of it. So what a browser says of itself is looked at, too: `Sec-Fetch-Site`, which no page
//! can set, or `Origin`, which none can either.

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
