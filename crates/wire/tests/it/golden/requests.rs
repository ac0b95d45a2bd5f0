//! JSON bodies of requests: read and written again, they are the same value with the same
//! absent members. Numbers must also keep their kind, so that `1` does not become `1.0`.

use super::{routes, vectors};
use crate::decoders;
use serde_json::Value;
use tinkrs_wire::DecodeError;

#[test]
fn every_request_of_the_sdk_comes_out_as_it_came_in() {
    for vector in vectors("requests") {
        let (operation, variant) = (vector.text("operation"), vector.text("variant"));
        let written = write_again(operation, &vector.bytes("body"))
            .unwrap_or_else(|e| panic!("{}: {e}: {:?}", vector.name, e));
        assert_eq!(written, vector.json["body"], "{}", vector.name);
        let (endpoint, path) = routes::of(operation, variant);
        assert_eq!(
            (vector.text("method"), vector.text("path")),
            (endpoint.method.as_str(), path.as_str()),
            "{}",
            vector.name
        );
    }
}

/// Decodes a body and encodes what was decoded.
pub(super) fn write_again(operation: &str, body: &[u8]) -> Result<Value, DecodeError> {
    let decoder = decoders::find(decoders::REQUESTS, operation);
    decoder.unwrap_or_else(|| panic!("no decoder is known for `{operation}`"))(body)
}
