//! What the server was sent.

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use serde_json::Value;
use std::collections::BTreeMap;
use tinkrs_wire::op::{forward, forward_backward::ForwardBackwardRequest};
use tinkrs_wire::{compress, header};
use tokio::time::Instant;

/// The largest body that the server decompresses.
const BODY_LIMIT_BYTES: usize = 1 << 30;

/// A request that the server was sent.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// How many requests came before.
    pub index: usize,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    /// The name of the operation, such as `forward_backward`.
    pub endpoint: &'static str,
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub uri: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body as sent; empty if the server cut the connection before reading it.
    pub body: Bytes,
    /// When it arrived.
    pub at: Instant,
    /// The parts of the path that are ids.
    pub(super) ids: Vec<String>,
}

impl Recorded {
    /// Returns a header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the credential.
    pub fn key(&self) -> Option<&str> {
        self.header(header::API_KEY)
    }

    /// Returns the query's parameters, decoded.
    pub fn query(&self) -> BTreeMap<String, String> {
        let pairs = self.uri.query().unwrap_or("").split('&');
        pairs
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (percent_decode(name), percent_decode(value)))
            .collect()
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("the body of {} is not JSON: {e}", self.endpoint))
    }

    /// Returns the body as a pass.
    ///
    /// # Panics
    /// If it is not a pass.
    pub fn pass(&self) -> ForwardBackwardRequest {
        self.try_pass()
            .unwrap_or_else(|e| panic!("the body of {} is not a pass: {e}", self.endpoint))
    }

    pub(super) fn try_pass(&self) -> Result<ForwardBackwardRequest, tinkrs_wire::DecodeError> {
        let body = match self.header("content-encoding") {
            Some("zstd") => compress::decompress(&self.body, BODY_LIMIT_BYTES)?,
            _ => self.body.clone(),
        };
        match (self.header("content-type"), self.endpoint) {
            (Some(header::JSON), "forward") => forward::decode(&body),
            (Some(header::JSON), _) => ForwardBackwardRequest::decode_json(&body),
            _ => ForwardBackwardRequest::decode(body),
        }
    }

    /// Returns the sequence number in the body, if it has one.
    pub fn seq_id(&self) -> Option<i64> {
        if self.header("content-type") == Some(header::PROTOBUF) {
            return self.try_pass().ok().map(|pass| pass.seq_id.into());
        }
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        body.get("seq_id")?.as_i64()
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let code = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        let (byte, used) = match (first, code) {
            (b'%', Some(code)) => (code, 2),
            (b'+', _) => (b' ', 0),
            _ => (*first, 0),
        };
        bytes.push(byte);
        rest = &tail[used..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn queries_are_decoded() {
        assert_eq!(super::percent_decode("a%3Ab+c%2"), "a:b c%2");
    }
}
