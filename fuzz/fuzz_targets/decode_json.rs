//! Reads the input as each JSON body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[allow(dead_code, reason = "the other target uses the rest")]
#[path = "../../crates/wire/tests/it/decoders.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| {
    // A golden vector has the body as a member, so that the vectors serve as a corpus.
    let vector: Option<Value> = serde_json::from_slice(bytes).ok();
    let body = vector.as_ref().and_then(|vector| vector.get("body"));
    let body = body.map(Value::to_string);
    let bytes = body.as_ref().map_or(bytes, |body| body.as_bytes());
    let tables = [decoders::REQUESTS, decoders::ANSWERS, decoders::OTHER_JSON];
    for (_, decoder) in tables.into_iter().flatten() {
        let _ = decoder(bytes);
    }
});
