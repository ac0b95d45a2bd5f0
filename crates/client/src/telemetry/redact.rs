//! Taking credentials out of reports.
//!
//! Two nets, one behind the other. Of headers, only those that are known to be harmless keep
//! their values: users send headers of their own, and any of them may be secret. And
//! whatever looks like a key or a token is taken out of every text.

use http::header::HeaderMap;
use serde_json::{Map, Value};
use tinkrs_wire::header;

const REDACTED: &str = "[redacted]";

/// Headers whose values say nothing about anybody.
const HARMLESS: [&str; 24] = [
    "accept",
    "accept-encoding",
    "cf-ray",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "server",
    "user-agent",
    "via",
    "x-request-id",
    header::PACKAGE_VERSION,
    header::RETRY_COUNT,
    header::READ_TIMEOUT,
    header::IDEMPOTENCY_KEY,
    header::SAMPLING_BACKPRESSURE,
    header::REQUEST_ITERATION,
    header::REQUEST_TYPE,
    header::CREATE_PROMISE_ROUNDTRIP_TIME,
    header::SDK_VERSION,
    header::SHOULD_RETRY,
    header::RETRY_AFTER_MS,
    header::RETRY_AFTER,
];

/// Returns the names of all headers, and the values of those that are harmless.
pub(crate) fn headers(headers: &HeaderMap) -> Map<String, Value> {
    let shown = |(name, value): (&http::header::HeaderName, &http::header::HeaderValue)| {
        let harmless = HARMLESS.contains(&name.as_str()) && !value.is_sensitive();
        let value = match value.to_str() {
            Ok(value) if harmless => text(value),
            _ => REDACTED.to_owned(),
        };
        (name.as_str().to_owned(), Value::String(value))
    };
    headers.iter().map(shown).collect()
}

/// Takes what looks like a credential out of all texts in a value, member names included.
pub(crate) fn value(value: Value) -> Value {
    match value {
        Value::String(string) => Value::String(text(&string)),
        Value::Array(items) => items.into_iter().map(self::value).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, member)| (text(&name), self::value(member)))
            .collect(),
        other => other,
    }
}

/// Takes what looks like a key (`tml-…`) or a token (`eyJ…`) out of a text.
pub(crate) fn text(text: &str) -> String {
    let mut rest = text;
    let mut clean = String::with_capacity(text.len());
    while let Some(at) = find_credential(rest) {
        let (before, found) = rest.split_at(at);
        let end = found.find(|c| !may_be_in_credential(c));
        clean.push_str(before);
        clean.push_str(REDACTED);
        rest = &found[end.unwrap_or(found.len())..];
    }
    clean.push_str(rest);
    clean
}

fn find_credential(text: &str) -> Option<usize> {
    let first = |prefix: &str| text.find(prefix);
    match (first("tml-"), first("eyJ")) {
        (Some(key), Some(token)) => Some(key.min(token)),
        (key, token) => key.or(token),
    }
}

fn may_be_in_credential(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::HeaderValue;
    use serde_json::json;

    #[test]
    fn only_harmless_headers_keep_their_values() {
        let mut given = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/json"),
            ("x-tinker-request-type", "Sample"),
            ("x-api-key", "hidden"),
            ("authorization", "Bearer hidden"),
            ("cookie", "hidden"),
            ("cf-access-client-id", "hidden"),
            ("cf-access-client-secret", "hidden"),
            ("x-tinker-weights-access-token", "hidden"),
            ("x-corporate-gateway", "hidden"),
            ("location", "https://elsewhere/?signature=hidden"),
            ("user-agent", "tml-hidden"),
        ] {
            given.insert(name, HeaderValue::from_static(value));
        }
        let mut sensitive = HeaderValue::from_static("hidden");
        sensitive.set_sensitive(true);
        given.insert("server", sensitive);

        let shown = headers(&given);
        assert_eq!(shown["content-type"], "application/json");
        assert_eq!(shown["x-tinker-request-type"], "Sample");
        assert_eq!(shown["x-api-key"], REDACTED);
        assert_eq!(shown.len(), given.len(), "the names are all there");
        let shown = Value::Object(shown).to_string();
        assert!(!shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn what_looks_like_a_credential_is_taken_out_of_texts() {
        let cases = [
            ("nothing to hide", "nothing to hide"),
            ("key tml-abc_1-2 is bad", "key [redacted] is bad"),
            (
                "'tml-a', \"eyJhbGciOi.J9.x-y_z\"",
                "'[redacted]', \"[redacted]\"",
            ),
            ("tml-a,eyJb;tml-c", "[redacted],[redacted];[redacted]"),
            ("x-api-key:tml-a\r\ny", "x-api-key:[redacted]\r\ny"),
            ("größe tml-ä", "größe [redacted]ä"),
        ];
        for (given, expected) in cases {
            assert_eq!(text(given), expected);
        }
    }

    #[test]
    fn nested_values_are_searched() {
        let given = json!({"a": ["tml-hidden", 1, null], "b": {"eyJhidden": "eyJhidden"}});
        let expected = json!({"a": [REDACTED, 1, null], "b": {REDACTED: REDACTED}});
        assert_eq!(value(given), expected);
    }
}
