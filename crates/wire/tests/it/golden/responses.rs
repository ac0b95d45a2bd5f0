//! Bodies of answers: what we make of them is what the SDK makes of them, defaults included.

use super::{Vector, vectors};
use crate::decoders;
use bytes::Bytes;
use serde_json::{Value, json};
use tinkrs_types::Timestamp;
use tinkrs_wire::header;
use tinkrs_wire::op::retrieve_future::{Reply, encode_try_again, queue_status};

#[test]
fn every_answer_means_to_us_what_it_means_to_the_sdk() {
    for vector in vectors("responses") {
        let seen = seen_by_us(&vector);
        let expected = with_tag(&vector, &seen);
        if let Err(difference) = same(&seen, &expected) {
            panic!(
                "{}: {difference}\nours {seen:#}\nSDK's {expected:#}",
                vector.name
            );
        }
    }
}

/// Reads the body and shows what was read.
fn seen_by_us(vector: &Vector) -> Value {
    let body = match vector.subject() {
        "request_failed" | "try_again" => return reply(vector),
        // The SDK makes it from the claims of a token, which are no body of ours.
        "whoami" => vector.bytes("parsed"),
        _ => vector.bytes("body"),
    };
    let decoder = decoders::find(decoders::ANSWERS, vector.subject());
    let decoder = decoder.unwrap_or_else(|| panic!("{}: no decoder is known", vector.name));
    decoder(&body).unwrap_or_else(|e| panic!("{}: {e}: {e:?}", vector.name))
}

/// Answers of `retrieve_future`, which are told apart before they are read.
fn reply(vector: &Vector) -> Value {
    let body = vector.bytes("body");
    match Reply::decode(header::JSON, Bytes::from(body.clone())).unwrap() {
        Reply::Failed(failed) => serde_json::to_value(failed).unwrap(),
        Reply::TryAgain(status) => {
            assert_eq!(queue_status(&body), Some(status.clone()));
            encode_try_again(&"request-1".into(), &status)
        }
        // Without its tag, the SDK sees "not yet" only in the body of a status 408.
        Reply::Json(_) => encode_try_again(&"request-1".into(), &queue_status(&body).unwrap()),
        other => panic!("{}: {other:?}", vector.name),
    }
}

/// The SDK's view, with the tag that we write and it may not have been sent.
fn with_tag(vector: &Vector, seen: &Value) -> Value {
    let mut expected = vector.json["parsed"].clone();
    if expected.get("type").is_some_and(Value::is_null) {
        expected["type"] = seen["type"].clone();
    }
    // The SDK's model has no such member; its client takes it from the body by hand.
    if vector.subject() == "try_again" {
        expected["queue_state_reason"] = vector.json["body"]["queue_state_reason"].clone();
    }
    expected
}

/// Compares values, where a null is the same as an absent member.
fn same(ours: &Value, theirs: &Value) -> Result<(), String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for name in ours.keys().chain(theirs.keys()) {
                let (ours, theirs) = (ours.get(name), theirs.get(name));
                let null = &Value::Null;
                same(ours.unwrap_or(null), theirs.unwrap_or(null))
                    .map_err(|difference| format!("{name}: {difference}"))?;
            }
            Ok(())
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            let mut pairs = ours.iter().zip(theirs);
            pairs.try_for_each(|(ours, theirs)| same(ours, theirs))
        }
        // The SDK keeps the zone that a time came with, we keep the moment.
        (Value::String(ours), Value::String(theirs))
            if ours
                .parse::<Timestamp>()
                .is_ok_and(|ours| theirs.parse().is_ok_and(|theirs: Timestamp| ours == theirs)) =>
        {
            Ok(())
        }
        _ if ours == theirs => Ok(()),
        _ => Err(format!("{ours} is not {theirs}")),
    }
}

#[test]
fn a_difference_between_answers_is_seen() {
    assert!(same(&json!({"a": null, "b": [1]}), &json!({"b": [1]})).is_ok());
    assert!(same(&json!({"a": 0}), &json!({})).is_err());
    assert!(same(&json!([1]), &json!([1, 2])).is_err());
    assert!(same(&json!(1), &json!(1.0)).is_err());
}
