//! What is kept of a response with an error status.

use crate::telemetry::redact;
use http::HeaderMap;
use http::header::SET_COOKIE;

/// Most bytes of a body that are kept.
const MAX_BODY: usize = 64 * 1024;
/// Most bytes of all headers together that are kept.
const MAX_HEADERS: usize = 16 * 1024;

/// The response of a server that refused a request: its headers and the start of its body.
///
/// What looks like a key or a token is taken out, since errors end up in logs.
#[derive(Clone, Debug, Default)]
pub struct ErrorResponse {
    pub(super) body: String,
    headers: Vec<(String, String)>,
}

impl ErrorResponse {
    pub(crate) fn new(headers: &HeaderMap, body: &[u8]) -> Self {
        let mut room = MAX_HEADERS;
        let kept = headers
            .iter()
            .filter(|(name, value)| *name != SET_COOKIE && !value.is_sensitive())
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
            .take_while(|(name, value)| {
                let size = name.len() + value.len();
                let fits = size <= room;
                room = room.saturating_sub(size);
                fits
            })
            .map(|(name, value)| (name.to_owned(), redact::text(value)))
            .collect();
        let start = String::from_utf8_lossy(&body[..body.len().min(MAX_BODY)]);
        Self {
            body: redact::text(&start),
            headers: kept,
        }
    }

    /// Returns the body, up to 64 KiB of it.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// Returns a header; upper and lower case are the same.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name);
        let (_, value) = self.headers.iter().find(found)?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{HeaderName, HeaderValue};

    fn response(headers: &[(&'static str, &str)], body: &[u8]) -> ErrorResponse {
        let header = |(name, value): &(&'static str, &str)| {
            let value = HeaderValue::from_str(value).unwrap();
            (HeaderName::from_static(name), value)
        };
        ErrorResponse::new(&headers.iter().map(header).collect(), body)
    }

    #[test]
    fn headers_are_found_whatever_their_case_and_cookies_are_not_kept() {
        let response = response(
            &[("x-request-id", "r1"), ("set-cookie", "session=secret")],
            b"no",
        );
        assert_eq!(response.header("X-Request-Id"), Some("r1"));
        assert_eq!(response.header("set-cookie"), None);
        assert_eq!(response.header("retry-after"), None);
        assert!(!format!("{response:?}").contains("secret"));
    }

    #[test]
    fn credentials_are_taken_out_of_body_and_headers() {
        let response = response(&[("x-echo", "key tml-secret")], b"bad key tml-secret!");
        assert_eq!(response.header("x-echo"), Some("key [redacted]"));
        assert_eq!(response.body(), "bad key [redacted]!");
    }

    #[test]
    fn a_huge_response_is_cut() {
        let body = "\u{20ac}".repeat(MAX_BODY);
        let large = "x".repeat(MAX_HEADERS);
        let response = response(&[("x-large", &large), ("x-small", "1")], body.as_bytes());
        assert!(
            response.body().len() <= MAX_BODY + 3,
            "one broken character"
        );
        assert_eq!(response.header("x-large"), None);
    }
}
