//! Protobuf messages: read and written again, they are the same bytes, and our schema and our
//! types see in them what the SDK sees.

use super::{Vector, folder, vectors, views};
use bytes::Bytes;
use prost::{DecodeError, Message};
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, ReflectMessage, Value as Field,
};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use tinkrs_types::InvalidInput;
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tinkrs_wire::op::{asample, forward_backward};
use tinkrs_wire::{compress, header, proto};

pub(super) fn bytes_of(vector: &Vector) -> Bytes {
    let path = folder("proto").join(format!("{}.bin", vector.name));
    fs::read(&path)
        .unwrap_or_else(|e| panic!("{path:?}: {e}"))
        .into()
}

/// The vectors of one message, without its name.
fn of_message(message: &str) -> Vec<(String, Bytes, Value)> {
    let found: Vec<_> = vectors("proto")
        .into_iter()
        .filter(|vector| vector.subject() == message)
        .map(|vector| {
            let variant = vector.name[message.len() + 1..].to_owned();
            (variant, bytes_of(&vector), vector.json["sdk"].clone())
        })
        .collect();
    assert!(!found.is_empty(), "no vectors of {message}");
    found
}

/// Messages with a zero in a map: the generated code leaves it out, which means the same. The
/// tests of whole requests and outputs below show that our own encoders write it.
const ZERO_IN_A_MAP: [&str; 3] = [
    "ForwardBackwardOutput.no_outputs",
    "ForwardBackwardRequest.config_not_finite",
    "ForwardBackwardRequest.config_zero",
];

#[test]
fn every_message_of_the_sdk_comes_out_as_the_same_bytes() {
    for vector in vectors("proto") {
        let bytes = bytes_of(&vector);
        let written = write_again(vector.subject(), bytes.clone()).unwrap();
        if ZERO_IN_A_MAP.contains(&vector.name.as_str()) {
            assert_ne!(written, bytes, "{}", vector.name);
            continue;
        }
        assert_eq!(written, bytes, "{}", vector.name);
    }
}

fn write_again(message: &str, bytes: Bytes) -> Result<Vec<u8>, DecodeError> {
    fn again<M: Message + Default>(bytes: Bytes) -> Result<Vec<u8>, DecodeError> {
        Ok(M::decode(bytes)?.encode_to_vec())
    }
    match message {
        "ArrayRecord" => again::<proto::ArrayRecord>(bytes),
        "BatchedTensor" => again::<proto::BatchedTensor>(bytes),
        "Chunk" => again::<proto::Chunk>(bytes),
        "Datum" => again::<proto::Datum>(bytes),
        "DmelChunk" => again::<proto::DmelChunk>(bytes),
        "EncodedTextChunk" => again::<proto::EncodedTextChunk>(bytes),
        "ForwardBackwardOutput" => again::<proto::ForwardBackwardOutput>(bytes),
        "ForwardBackwardRequest" => again::<proto::ForwardBackwardRequest>(bytes),
        "ImageChunk" => again::<proto::ImageChunk>(bytes),
        "ImageDimensions" => again::<proto::ImageDimensions>(bytes),
        "LossConfigValue" => again::<proto::LossConfigValue>(bytes),
        "PromptAltTokens" => again::<proto::PromptAltTokens>(bytes),
        "PromptProvenanceSpan" => again::<proto::PromptProvenanceSpan>(bytes),
        "ProvenanceSpan" => again::<proto::ProvenanceSpan>(bytes),
        "SampleResponse" => again::<proto::SampleResponse>(bytes),
        "SampledProvenanceSpan" => again::<proto::SampledProvenanceSpan>(bytes),
        "SampledSequence" => again::<proto::SampledSequence>(bytes),
        "SamplingParams" => again::<proto::SamplingParams>(bytes),
        "SparseCsr" => again::<proto::SparseCsr>(bytes),
        "StopStrings" => again::<proto::StopStrings>(bytes),
        "StopTokens" => again::<proto::StopTokens>(bytes),
        "Tensor" => again::<proto::Tensor>(bytes),
        "TopkLogprobs" => again::<proto::TopkLogprobs>(bytes),
        unknown => panic!("no message is known as `{unknown}`: add it here"),
    }
}

/// Swapped fields of one type would survive a round trip, so the names are compared as well.
#[test]
fn our_schema_gives_every_field_the_name_and_value_that_the_sdk_gives_it() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let files = protox::compile(["tinker_public.proto"], [include]).unwrap();
    let schema = DescriptorPool::from_file_descriptor_set(files).unwrap();
    for vector in vectors("proto") {
        let name = vector.text("message");
        let descriptor = schema.get_message_by_name(name).expect(name);
        let message = DynamicMessage::decode(descriptor, bytes_of(&vector)).unwrap();
        assert_eq!(fields(&message), vector.json["fields"], "{}", vector.name);
    }
}

fn fields(message: &DynamicMessage) -> Value {
    let descriptor = message.descriptor();
    let shown = descriptor.fields().map(|field| {
        let unset = field.supports_presence() && !message.has_field(&field);
        let value = if unset {
            Value::Null
        } else {
            shown(&field, &message.get_field(&field))
        };
        (field.name().to_owned(), value)
    });
    Value::Object(shown.collect())
}

fn shown(field: &FieldDescriptor, value: &Field) -> Value {
    match value {
        Field::Bool(value) => json!(value),
        Field::I32(value) => json!(value),
        Field::I64(value) => json!(value),
        Field::U32(value) => json!(value),
        Field::U64(value) => json!(value),
        Field::F32(value) => views::number(f64::from(*value)),
        Field::F64(value) => views::number(*value),
        Field::String(value) => json!(value),
        Field::Bytes(value) => value
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>()
            .into(),
        Field::Message(message) => fields(message),
        Field::List(items) => items.iter().map(|item| shown(field, item)).collect(),
        Field::Map(entries) => {
            let Kind::Message(entry) = field.kind() else {
                unreachable!("a map's entries are messages")
            };
            let item = entry.map_entry_value_field();
            let entries = entries
                .iter()
                .map(|(key, value)| (key.as_str().unwrap().to_owned(), shown(&item, value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Field::EnumNumber(number) => {
            let Kind::Enum(names) = field.kind() else {
                unreachable!("an enum's number is of an enum")
            };
            names.get_value(*number).unwrap().name().into()
        }
    }
}

/// Requests that our types do not take, by the field that they refuse.
const REFUSED_REQUESTS: [(&str, &str); 3] = [
    // A known loss is not given an option that it does not have.
    ("config_mixed", "loss_fn_config.name"),
    ("config_not_finite", "loss_fn_config.a"),
    // Our token ids are unsigned.
    ("token_limits", "model_input.chunks[0].tokens"),
];

#[test]
fn every_request_that_our_types_take_keeps_its_bytes_and_its_meaning() {
    for (variant, bytes, sdk) in of_message("ForwardBackwardRequest") {
        let request = ForwardBackwardRequest::decode(bytes.clone());
        if let Some((_, field)) = REFUSED_REQUESTS.iter().find(|(name, _)| *name == variant) {
            assert_eq!(refused(request.unwrap_err()).field(), *field, "{variant}");
            continue;
        }
        let request = request.unwrap_or_else(|e| panic!("{variant}: {e}"));
        assert_eq!(views::request(&request), as_sent(sdk), "{variant}");
        assert_eq!(request.encode().unwrap(), bytes, "{variant}");
    }
}

/// What reaches the wire of what the SDK's user gave: some differences have no form there.
fn as_sent(mut sdk: Value) -> Value {
    if sdk["loss_fn_config"] == json!({}) {
        sdk["loss_fn_config"] = Value::Null;
    }
    for datum in sdk["data"].as_array_mut().unwrap() {
        for spans in ["model_input_spans", "loss_fn_input_spans"] {
            if datum[spans] == json!([]) {
                datum[spans] = Value::Null;
            }
        }
        for (_, tensor) in datum["loss_fn_inputs"].as_object_mut().unwrap() {
            if tensor["shape"] == json!([]) {
                tensor["shape"] = Value::Null;
            }
            // The SDK's user may give whole numbers, or more digits than float32 has.
            if tensor["dtype"] == "float32" {
                for item in tensor["data"].as_array_mut().unwrap() {
                    if let Some(value) = item.as_f64() {
                        *item = json!(value as f32);
                    }
                }
            }
        }
    }
    // Options are numbers or texts; a whole number is a number.
    if let Some(options) = sdk["loss_fn_config"].as_object_mut() {
        for (_, option) in options {
            if let Some(value) = option.as_f64() {
                *option = json!(value);
            }
        }
    }
    sdk
}

fn refused(error: tinkrs_wire::DecodeError) -> InvalidInput {
    match error {
        tinkrs_wire::DecodeError::Invalid(error) => error,
        other => panic!("{other}"),
    }
}

/// Samples whose bytes change, because two forms mean the same.
const NORMALISED_SAMPLES: [(&str, &str); 5] = [
    ("alt_tokens_int32", "int32 is widened to int64"),
    ("full", "int32 is widened to int64"),
    ("empty_logprobs", "an empty field is left out"),
    ("topk_prompt_k_zero", "a table without columns is left out"),
    (
        "topk_prompt_length_zero",
        "a table without rows is left out",
    ),
];

#[test]
fn every_sample_keeps_its_bytes_and_its_meaning() {
    for (variant, bytes, sdk) in of_message("SampleResponse") {
        let output = asample::decode_result(header::PROTOBUF, bytes.clone())
            .unwrap_or_else(|e| panic!("{variant}: {e}"));
        assert_eq!(views::sample(&output), sdk, "{variant}");
        let written = asample::encode_result(output);
        match NORMALISED_SAMPLES.iter().find(|(name, _)| *name == variant) {
            None => assert_eq!(written, bytes, "{variant}"),
            Some((_, why)) => assert_ne!(written, bytes, "{variant}: not needed: {why}"),
        }
        let output = asample::decode_result(header::PROTOBUF, written.into()).unwrap();
        assert_eq!(views::sample(&output), sdk, "{variant} again");
    }
}

/// Outputs whose bytes change, because two forms mean the same.
const NORMALISED_OUTPUTS: [(&str, &str); 9] = [
    ("appendix_b4", "the module is cut off the type"),
    ("bfloat16", "bfloat16 is widened to float32"),
    ("empty", "the type gets its default"),
    ("int32", "int32 is widened to int64"),
    ("metrics", "the type gets its default"),
    ("no_num_datums", "the count is filled in"),
    (
        "several_records",
        "tags are dropped and bfloat16 is widened",
    ),
    ("trailing_shape_3d", "int32 is widened to int64"),
    ("type_with_colons", "the module is cut off the type"),
];

#[test]
fn every_output_keeps_its_bytes_and_its_meaning() {
    for (variant, bytes, sdk) in of_message("ForwardBackwardOutput") {
        let output = forward_backward::decode_result(header::PROTOBUF, bytes.clone())
            .unwrap_or_else(|e| panic!("{variant}: {e}"));
        assert_eq!(views::output(&output), sdk, "{variant}");
        let written = forward_backward::encode_result(output);
        match NORMALISED_OUTPUTS.iter().find(|(name, _)| *name == variant) {
            None => assert_eq!(written, bytes, "{variant}"),
            Some((_, why)) => assert_ne!(written, bytes, "{variant}: not needed: {why}"),
        }
        let output = forward_backward::decode_result(header::PROTOBUF, written.into()).unwrap();
        assert_eq!(views::output(&output), sdk, "{variant} again");
    }
}

#[test]
fn a_body_that_the_sdk_compressed_is_the_plain_one() {
    let plain = fs::read(folder("proto/ForwardBackwardRequest.several_datums.bin")).unwrap();
    let small = fs::read(folder(
        "proto/ForwardBackwardRequest.several_datums.bin.zst",
    ))
    .unwrap();
    let again = compress::decompress(&small, plain.len()).unwrap();
    assert_eq!(again, plain);
    let ours = compress::compress(&plain);
    assert_eq!(compress::decompress(&ours, plain.len()).unwrap(), plain);
}
