//! Protobuf messages, generated from `proto/tinker_public.proto`.
//!
//! `bytes` fields are [`bytes::Bytes`]: decoding from `Bytes` shares them, it copies nothing.
//! `TINKRS_BLESS=1 cargo test -p tinkrs-wire generated` writes the code again; without the
//! variable the same test fails when it is out of date.
#![allow(missing_docs, clippy::all, reason = "generated code")]

include!("generated/tinker_public.rs");
