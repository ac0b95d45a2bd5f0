//! A null for a number that always has a value: what JSON writers make of NaN.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tinkrs_wire::{endpoint, openapi};

use super::impatient;
use super::valid::{Valid, valid_requests};
use crate::caller::{Local, pass};
use crate::way::Way;

/// A number in the body of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    /// Where it is, as a JSON pointer.
    place: String,
    /// Whether the schema lets it be null.
    may_be_null: bool,
}

/// Finds the numbers that a schema has in a body, also those that the body leaves out.
fn numbers(
    document: &Value,
    schema: &Value,
    body: &Value,
    place: &str,
    found: &mut BTreeSet<Number>,
) {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = document.pointer(&reference[1..]).unwrap();
        return numbers(document, schema, body, place, found);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    if types.iter().any(|it| ["number", "integer"].contains(it)) {
        found.insert(Number {
            place: place.to_owned(),
            may_be_null: types.contains(&"null"),
        });
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for part in schema[key].as_array().into_iter().flatten() {
            numbers(document, part, body, place, found);
        }
    }
    if body.is_object() {
        for (name, part) in schema["properties"].as_object().into_iter().flatten() {
            let place = format!("{place}/{name}");
            numbers(document, part, &body[name], &place, found);
        }
    }
    if let Some(first) = body.get(0) {
        numbers(
            document,
            &schema["items"],
            first,
            &format!("{place}/0"),
            found,
        );
    }
}

/// Sends a body that is known to be refused or to fail, and returns what its sender is told.
async fn refusal(local: &Local, valid: &Valid) -> String {
    let answer = local.send(valid.request()).await;
    match answer.status.as_u16() {
        // An operation of a model fails as its own result.
        200 if answer.json().get("request_id").is_some() => {
            local.result(&answer.json()).await["error"].to_string()
        }
        400 => answer.detail(),
        status => format!("{status} {:?}", answer.body),
    }
}

#[tokio::test]
async fn a_null_for_a_number_that_always_has_a_value_is_refused_by_name_on_every_endpoint() {
    let server = impatient().await;
    let local = server.local();
    let document = openapi::document();
    let mut refused = BTreeSet::new();
    for valid in valid_requests(&server).await {
        let Some(body) = valid.json.as_ref().filter(|body| body.is_object()) else {
            continue;
        };
        // Reports are taken as they are, and nobody reads them here.
        if valid.endpoint.name == endpoint::TELEMETRY.name {
            continue;
        }
        let method = valid.endpoint.method.as_str().to_ascii_lowercase();
        let operation = &document["paths"][valid.endpoint.path][&method];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let mut found = BTreeSet::new();
        numbers(&document, schema, body, "", &mut found);
        for number in found.into_iter().filter(|number| !number.may_be_null) {
            let (parent, name) = number.place.rsplit_once('/').unwrap();
            let mut body = body.clone();
            match body.pointer_mut(parent).unwrap() {
                Value::Array(items) => items[0] = Value::Null,
                object => object[name] = Value::Null,
            }
            let with_null = Valid {
                body: Bytes::from(body.to_string()),
                ..valid.clone()
            };
            let what = format!("{} of {}", number.place, valid.endpoint.name);
            let told = refusal(&local, &with_null).await;
            let member = number.place.split('/').rfind(|name| *name != "0").unwrap();
            assert!(told.contains(member), "{what}: {told}");
            refused.insert(what);
        }
    }
    for known in [
        "/adam_params/learning_rate of optim_step",
        "/sampling_params/temperature of asample",
        "/lora_config/rank of create_model",
        "/limit of search_sessions",
    ] {
        assert!(refused.contains(known), "{known} is not in {refused:?}");
    }
    super::assert_works(&server).await;
}

#[tokio::test]
async fn a_null_in_the_options_of_a_loss_is_not_its_default() {
    let server = impatient().await;
    let local = server.local();
    let model = server.model().await;
    for (seq_id, beside) in [(1, json!(null)), (2, json!(0.5))] {
        let mut body = pass(&model, seq_id);
        body["forward_backward_input"]["loss_fn"] = json!("ppo");
        body["forward_backward_input"]["loss_fn_config"] =
            json!({"clip_low_threshold": null, "clip_high_threshold": beside});
        let answer = local.call(Method::POST, "/forward_backward", &body).await;
        let told = local.result(&answer.json()).await["error"].to_string();
        assert!(told.contains("loss_fn_config.clip_"), "{told}");
    }
}
