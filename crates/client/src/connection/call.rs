//! A call of the server, and its response.

use super::errors::AttemptError;
use super::policy::Policy;
use super::transport::Traffic;
use crate::Error;
use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::time::Duration;
use tinkrs_wire::endpoint::{Endpoint, JsonType, PathIds};
use tinkrs_wire::text::percent_encode;
use tinkrs_wire::{Body, header};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest response to most calls: the largest pages of listings are a few megabytes.
pub(crate) const MAX_RESPONSE_BYTES: usize = 32 << 20;

/// What a request carries.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    None,
    Json(Bytes),
    Message { body: Bytes, zstd: bool },
    Archive(Bytes),
}

impl Payload {
    pub(super) fn body(&self) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match self {
            Self::None => &NONE,
            Self::Json(body) | Self::Message { body, .. } | Self::Archive(body) => body,
        }
    }
}

/// A call that has been described but not made.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// What the caller knows the call as, usually the endpoint's name.
    pub(crate) operation: &'static str,
    pub(crate) endpoint: &'static Endpoint,
    /// The endpoint's path, with ids and a query.
    pub(crate) path: Cow<'static, str>,
    pub(crate) payload: Payload,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) accept: &'static str,
    pub(crate) traffic: Traffic,
    pub(crate) timeout: Duration,
    /// The longest response that fits what is asked for.
    pub(crate) max_response_bytes: usize,
    pub(crate) policy: Policy,
    /// Failures that end the call at once, whatever the policy says: the caller has another way then.
    pub(crate) stop_if: Option<fn(&AttemptError) -> bool>,
}

impl Call {
    /// Describes a call of an endpoint whose path holds no ids.
    pub(crate) fn new(endpoint: &'static Endpoint) -> Self {
        debug_assert_eq!(endpoint.parameters().next(), None, "{}", endpoint.name);
        Self::to(endpoint, endpoint.path)
    }

    /// Describes a call of an endpoint with these ids in its path.
    pub(crate) fn at(endpoint: &'static Endpoint, ids: &impl PathIds) -> Self {
        Self::to(endpoint, endpoint.at(ids))
    }

    fn to(endpoint: &'static Endpoint, path: impl Into<Cow<'static, str>>) -> Self {
        Self {
            operation: endpoint.name,
            endpoint,
            path: path.into(),
            payload: Payload::None,
            headers: Vec::new(),
            accept: header::JSON,
            traffic: Traffic::Shared,
            timeout: TIMEOUT,
            max_response_bytes: MAX_RESPONSE_BYTES,
            policy: Policy::FIVE_MINUTES,
            stop_if: None,
        }
    }

    pub(crate) fn method(&self) -> &Method {
        &self.endpoint.method
    }

    /// Names the call as the user knows it, where that is not the endpoint's name.
    pub(crate) fn named(mut self, operation: &'static str) -> Self {
        self.operation = operation;
        self
    }

    /// Sets the body, which is of the type that the endpoint takes.
    pub(crate) fn json<B: Body>(mut self, body: &B) -> Self {
        let declared = self.endpoint.request.json_type();
        debug_assert!(
            declared.is_some_and(JsonType::is::<B>),
            "{}",
            self.endpoint.name
        );
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

    pub(crate) fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.max_response_bytes = bytes;
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.push((HeaderName::from_static(name), value));
        self
    }

    /// Adds a query string; nulls are simply not given.
    pub(crate) fn query<'a>(
        mut self,
        pairs: impl IntoIterator<Item = (&'a str, Cow<'a, str>)>,
    ) -> Self {
        let declared = self.endpoint.query.map_or(&[][..], |query| query.names());
        let mut encoded = form(pairs.into_iter().inspect(|(name, _)| {
            debug_assert!(declared.contains(name), "{}: {name}", self.endpoint.name);
        }));
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
            text.push_str(&percent_encode(part).replace("%20", "+"));
        }
    }
    text
}

/// A successful response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Response {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_wire::endpoint;

    #[test]
    fn a_query_is_encoded_like_a_form() {
        let pairs = [("day", "2026-01-02".into()), ("q", "a b&c:d/é".into())];
        assert_eq!(form(pairs), "day=2026-01-02&q=a+b%26c%3Ad%2F%C3%A9");
        let call = Call::new(&endpoint::LIST_SESSIONS);
        assert_eq!(call.query([]).path, endpoint::LIST_SESSIONS.path);
    }
}
