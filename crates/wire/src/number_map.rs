//! `map<string, double>` fields, written the way the official encoder writes them.
//!
//! The generated code leaves a zero out of a map entry. Every decoder then reads a zero, but
//! the bytes differ and -0.0 loses its sign. A map is a list of messages on the wire, so it can
//! be encoded as one, behind the fields with smaller numbers.

use prost::Message;
use std::collections::BTreeMap;

/// One entry, whose members are written even if they are zero.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
}

/// Field 3 of `ForwardBackwardOutput`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metrics {
    #[prost(message, repeated, tag = "3")]
    metrics: Vec<Entry>,
}

/// Field 5 of `ForwardBackwardRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LossFnConfig {
    #[prost(message, repeated, tag = "5")]
    loss_fn_config: Vec<Entry>,
}

impl From<BTreeMap<String, f64>> for Metrics {
    fn from(metrics: BTreeMap<String, f64>) -> Self {
        Self {
            metrics: entries(metrics),
        }
    }
}

impl From<BTreeMap<String, f64>> for LossFnConfig {
    fn from(config: BTreeMap<String, f64>) -> Self {
        Self {
            loss_fn_config: entries(config),
        }
    }
}

fn entries(map: BTreeMap<String, f64>) -> Vec<Entry> {
    let entry = |(key, value)| Entry {
        key: Some(key),
        value: Some(value),
    };
    map.into_iter().map(entry).collect()
}

/// Encodes a message with these bytes behind it: those of its fields with larger numbers.
pub(crate) fn encode_before(message: &impl Message, tail: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.encoded_len() + tail.len());
    message.encode(&mut bytes).expect("a vector grows");
    bytes.extend_from_slice(tail);
    bytes
}
