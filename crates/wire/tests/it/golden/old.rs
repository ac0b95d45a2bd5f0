//! Requests of old clients, which a server reads as if a new client had sent them, and the JSON
//! results that such clients take.

use super::requests::write_again;
use super::{Vector, folder, routes, vectors, views};
use serde_json::{Map, Value, json};
use tinkrs_types::InvalidInput;
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tinkrs_wire::op::{asample, forward, forward_backward};
use tinkrs_wire::{DecodeError, header};

/// The versions that there are vectors of.
pub(super) fn versions() -> Vec<String> {
    let entries = std::fs::read_dir(folder("old")).unwrap();
    let mut found: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, ["0.16.1", "0.3.0"], "say here what you added");
    found
}

/// The vectors of each version's folder, with the version in their names.
fn of_versions(subfolder: &str) -> Vec<Vector> {
    let of_version = |version: String| {
        let found = vectors(&format!("old/{version}{subfolder}"));
        found.into_iter().map(move |vector| Vector {
            name: format!("{version}: {}", vector.name),
            json: vector.json,
        })
    };
    versions().into_iter().flat_map(of_version).collect()
}

#[test]
fn every_old_request_goes_where_a_new_one_goes() {
    for vector in of_versions("") {
        let (endpoint, path) = routes::of(vector.text("operation"), vector.text("variant"));
        let found = (vector.text("method"), vector.text("path"));
        assert_eq!(
            found,
            (endpoint.method.as_str(), path.as_str()),
            "{}",
            vector.name
        );
    }
}

#[test]
fn every_old_body_is_read_as_the_new_body_with_its_defaults() {
    for vector in of_versions("") {
        let operation = vector.text("operation");
        if ["forward", "forward_backward"].contains(&operation) {
            continue; // They are protobuf today: see the next test.
        }
        let written = write_again(operation, &vector.bytes("body"))
            .unwrap_or_else(|e| panic!("{}: {e}: {e:?}", vector.name));
        let expected = modern(operation, vector.json["body"].clone());
        assert_eq!(written, expected, "{}", vector.name);
        let again = write_again(operation, written.to_string().as_bytes()).unwrap();
        assert_eq!(again, expected, "{} again", vector.name);
    }
}

/// What version 0.36 would have sent: nulls left out, defaults and tags put in.
fn modern(operation: &str, mut body: Value) -> Value {
    drop_nulls(&mut body);
    let defaults = match operation {
        "asample" => json!({
            "topk_prompt_logprobs": 0, "topk_sample_logprobs": 0, "prompt_alt_tokens_k": 0,
            "sampling_params": {"temperature": 1.0, "top_k": -1, "top_p": 1.0}, "type": "sample",
        }),
        "create_model" => json!({
            "lora_config": {}, "optimizer_config": {"type": "adamw"}, "type": "create_model",
        }),
        "create_sampling_session" => json!({"type": "create_sampling_session"}),
        "create_session" => json!({"type": "create_session"}),
        "get_info" => json!({"type": "get_info"}),
        // The first clients had no choice: a load restored the optimizer too.
        "load_weights" => json!({"optimizer": true, "type": "load_weights"}),
        "optim_step" => json!({
            "adam_params": {
                "learning_rate": 0.0001, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
                "weight_decay": 0.0, "grad_clip_norm": 0.0,
            },
            "type": "optim_step",
        }),
        "retrieve_future" => json!({"allow_metadata_only": false}),
        "save_weights" => json!({"overwrite": false, "type": "save_weights"}),
        "save_weights_for_sampler" => json!({"type": "save_weights_for_sampler"}),
        "session_heartbeat" => json!({"type": "session_heartbeat"}),
        "telemetry" => json!({"process_uuid": ""}),
        "unload_model" => json!({"type": "unload_model"}),
        unknown => panic!("no defaults are known for `{unknown}`: add them here"),
    };
    fill(&mut body, &defaults);
    if let Some(chunks) = body.pointer_mut("/prompt/chunks") {
        modern_chunks(chunks);
    }
    body
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            // What users wrote may hold nulls.
            let typed = members.iter_mut().filter(|(name, _)| *name != "event_data");
            typed.for_each(|(_, member)| drop_nulls(member));
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn fill(body: &mut Value, defaults: &Value) {
    let (Value::Object(body), Value::Object(defaults)) = (body, defaults) else {
        return;
    };
    for (name, default) in defaults {
        let member = body.entry(name).or_insert_with(|| default.clone());
        fill(member, default);
    }
}

/// Adds the tags, and turns the first images' `tokens` into `expected_tokens`.
fn modern_chunks(chunks: &mut Value) {
    for chunk in chunks.as_array_mut().unwrap() {
        let chunk = chunk.as_object_mut().unwrap();
        let kind = match chunk {
            _ if chunk.contains_key("location") => "image_asset_pointer",
            _ if chunk.contains_key("data") => "image",
            _ => "encoded_text",
        };
        chunk.insert("type".to_owned(), kind.into());
        if kind != "encoded_text" {
            chunk.remove("height");
            chunk.remove("width");
            if let Some(count) = chunk.remove("tokens") {
                chunk.insert("expected_tokens".to_owned(), count);
            }
        }
    }
}

/// Passes that we do not take, by the field at fault and what is wrong with it.
const REFUSED_PASSES: [(&str, &str); 1] = [
    // One log-probability for two tokens.
    ("arrays", "datum 0: `logprobs`: found 1 element, expected 2"),
];

/// Passes over what protobuf has no form for, so that no new client can send them.
const NOT_SENT_TODAY: [&str; 1] = ["image_asset_pointer"];

#[test]
fn every_old_pass_is_read_as_the_request_that_a_new_client_sends() {
    let mut passes = 0;
    for vector in of_versions("") {
        let (request, input) = match vector.text("operation") {
            "forward" => (forward::decode(&vector.bytes("body")), "forward_input"),
            "forward_backward" => {
                let request = ForwardBackwardRequest::decode_json(&vector.bytes("body"));
                (request, "forward_backward_input")
            }
            _ => continue,
        };
        passes += 1;
        let variant = vector.text("variant");
        if let Some((_, error)) = REFUSED_PASSES.iter().find(|(name, _)| *name == variant) {
            let found = refused(request.unwrap_err()).to_string();
            assert!(found.starts_with(error), "{}: {found}", vector.name);
            continue;
        }
        let request = request.unwrap_or_else(|e| panic!("{}: {e}: {e:?}", vector.name));
        let again = request.clone().encode_json().unwrap();
        let again = if request.forward_only {
            forward::decode(&again)
        } else {
            ForwardBackwardRequest::decode_json(&again)
        };
        assert_eq!(again.unwrap(), request, "{}: written again", vector.name);
        let expected = modern_pass(&vector.json["body"], input);
        assert_eq!(views::request(&request), expected, "{}", vector.name);

        let sent = request.clone().encode();
        if NOT_SENT_TODAY.contains(&variant) {
            assert_eq!(sent.unwrap_err().datum(), Some(0), "{}", vector.name);
            continue;
        }
        let again = ForwardBackwardRequest::decode(sent.unwrap().into()).unwrap();
        assert_eq!(again, request, "{} again", vector.name);
    }
    assert!(passes > 0, "no passes");
}

/// An old pass in the form of the views.
fn modern_pass(body: &Value, input: &str) -> Value {
    let given = &body[input];
    let datum = |datum: &Value| {
        let mut chunks = datum["model_input"]["chunks"].clone();
        modern_chunks(&mut chunks);
        for chunk in chunks.as_array_mut().unwrap() {
            if chunk["type"] != "encoded_text" && chunk.get("expected_tokens").is_none() {
                chunk["expected_tokens"] = Value::Null;
            }
        }
        let tensors = datum["loss_fn_inputs"].as_object().unwrap().iter();
        let tensors = tensors.map(|(name, tensor)| {
            let mut tensor = tensor.clone();
            for member in ["shape", "sparse_crow_indices", "sparse_col_indices"] {
                tensor[member] = tensor.get(member).cloned().unwrap_or_default();
            }
            (name.clone(), tensor)
        });
        json!({
            "model_input": chunks,
            "loss_fn_inputs": tensors.collect::<Map<_, _>>(),
            "model_input_spans": null,
            "loss_fn_input_spans": null,
        })
    };
    json!({
        "model_id": body["model_id"],
        "seq_id": body["seq_id"],
        "loss_fn": given["loss_fn"],
        "loss_fn_config": given["loss_fn_config"],
        "forward_only": input == "forward_input",
        "data": given["data"].as_array().unwrap().iter().map(datum).collect::<Vec<_>>(),
    })
}

fn refused(error: DecodeError) -> InvalidInput {
    match error {
        DecodeError::Invalid(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn every_old_result_comes_out_as_the_old_client_sees_it() {
    for vector in of_versions("/results") {
        let body = vector.bytes("body").into();
        let subject = vector.name.rsplit(' ').next().unwrap();
        let written = match subject.split('.').next().unwrap() {
            "asample" => {
                let output = asample::decode_result(header::JSON, body).unwrap();
                asample::encode_json_result(&output)
            }
            "forward_backward" => {
                let output = forward_backward::decode_result(header::JSON, body).unwrap();
                forward_backward::encode_json_result(&output)
            }
            unknown => panic!("no result is known for `{unknown}`: add it here"),
        };
        let expected = as_float32(&vector.json["parsed"]);
        let written = as_float32(&with_shapes_left_out(written, &expected));
        assert_eq!(written, expected, "{}", vector.name);
    }
}

/// We always write a shape, where an old server may have left out that of a vector.
fn with_shapes_left_out(mut written: Value, expected: &Value) -> Value {
    let Some(outputs) = expected["loss_fn_outputs"].as_array() else {
        return written;
    };
    for (index, fields) in outputs.iter().enumerate() {
        for (name, tensor) in fields.as_object().unwrap() {
            let ours = &mut written["loss_fn_outputs"][index][name];
            if tensor["shape"].is_null() {
                assert_eq!(
                    ours["shape"],
                    json!([tensor["data"].as_array().unwrap().len()])
                );
                ours["shape"] = Value::Null;
            }
        }
    }
    written
}

/// Numbers with no more digits than float32 has, which is what is computed with.
fn as_float32(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!(number.as_f64().unwrap() as f32),
        Value::Array(items) => items.iter().map(as_float32).collect(),
        Value::Object(members) => {
            let members = members.iter();
            Value::Object(members.map(|(k, v)| (k.clone(), as_float32(v))).collect())
        }
        other => other.clone(),
    }
}
