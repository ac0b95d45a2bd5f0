//! Reads the input as each protobuf message, and as what is neither protobuf nor JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the other target uses the rest")]
#[path = "../../crates/wire/tests/it/decoders.rs"]
mod decoders;

fuzz_target!(|bytes: &[u8]| {
    for (_, decoder) in decoders::MESSAGES {
        let _ = decoder(bytes);
    }
    decoders::try_rest(bytes);
});
