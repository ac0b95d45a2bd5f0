//! Any value survives the wire, bit by bit, and arbitrary bytes never make a decoder panic.

use crate::{arbitrary, decoders};
use proptest::prelude::*;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::training::LossConfigValue;
use tinkrs_types::{ForwardBackwardOutput, SampleOutput, TensorData};
use tinkrs_wire::op::asample::{self, SampleRequest};
use tinkrs_wire::op::create_model::CreateModelRequest;
use tinkrs_wire::op::forward_backward::{self, ForwardBackwardRequest};
use tinkrs_wire::op::optim_step::OptimStepRequest;
use tinkrs_wire::{Body, compress, header};

proptest! {
    #[test]
    fn any_pass_request_survives(request in arbitrary::forward_backward_request()) {
        let bytes = request.clone().encode().unwrap();
        let again = ForwardBackwardRequest::decode(bytes.into()).unwrap();
        prop_assert_eq!(request_bits(&again), request_bits(&request));
        prop_assert_eq!(format!("{again:?}"), format!("{request:?}"));
    }

    #[test]
    fn any_pass_output_survives(output in arbitrary::forward_backward_output()) {
        let bytes = forward_backward::encode_result(output.clone());
        let again = forward_backward::decode_result(header::PROTOBUF, bytes.into()).unwrap();
        prop_assert_eq!(output_bits(&again), output_bits(&output));
        prop_assert_eq!(format!("{again:?}"), format!("{output:?}"));
    }

    #[test]
    fn any_sample_survives(output in arbitrary::sample_output()) {
        let bytes = asample::encode_result(output.clone());
        let again = asample::decode_result(header::PROTOBUF, bytes.into()).unwrap();
        prop_assert_eq!(sample_bits(&again), sample_bits(&output));
        prop_assert_eq!(format!("{again:?}"), format!("{output:?}"));
    }

    #[test]
    fn any_finite_tensor_survives_json(tensor in arbitrary::tensor(arbitrary::finite_f32())) {
        let json = serde_json::to_string(&tensor).unwrap();
        let again: TensorData = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(tensor_bits(&again), tensor_bits(&tensor));
        prop_assert_eq!(again, tensor);
    }

    #[test]
    fn any_sample_request_survives(request in arbitrary::sample_request()) {
        prop_assert_eq!(SampleRequest::decode(&request.encode()).unwrap(), request);
    }

    #[test]
    fn any_prompt_survives_with_its_chunks_as_they_are(prompt in arbitrary::prompt()) {
        let empty = br#"{"prompt": {"chunks": []}, "sampling_params": {}}"#;
        let mut request = SampleRequest::decode(empty).unwrap();
        request.prompt = prompt.clone();
        prop_assert_eq!(SampleRequest::decode(&request.encode()).unwrap().prompt, prompt);
    }

    #[test]
    fn any_step_survives(request in arbitrary::optim_step_request()) {
        prop_assert_eq!(OptimStepRequest::decode(&request.encode()).unwrap(), request);
    }

    #[test]
    fn any_model_to_create_survives(request in arbitrary::create_model_request()) {
        prop_assert_eq!(CreateModelRequest::decode(&request.encode()).unwrap(), request);
    }

    #[test]
    fn any_body_survives_compression(body in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        let small = compress::compress(&body);
        prop_assert_eq!(compress::decompress(&small, body.len()).unwrap(), body);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let tables = [
            decoders::MESSAGES,
            decoders::REQUESTS,
            decoders::ANSWERS,
            decoders::OTHER_JSON,
        ];
        for (_, decoder) in tables.into_iter().flatten() {
            let _ = decoder(&bytes);
        }
        decoders::try_rest(&bytes);
    }

    #[test]
    fn a_message_with_a_changed_byte_is_refused_or_read(
        request in arbitrary::forward_backward_request(),
        output in arbitrary::forward_backward_output(),
        sample in arbitrary::sample_output(),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let messages = [
            ("ForwardBackwardRequest", request.encode().unwrap()),
            ("ForwardBackwardOutput", forward_backward::encode_result(output)),
            ("SampleResponse", asample::encode_result(sample)),
        ];
        for (name, mut bytes) in messages {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = decoders::find(decoders::MESSAGES, name).unwrap()(&bytes);
        }
    }
}

/// The bits of all floats, as `==` takes no NaN for another and 0.0 for -0.0.
fn value_bits(values: &TensorValues) -> Vec<u64> {
    match values {
        TensorValues::F32(values) => values.iter().map(|v| v.to_bits().into()).collect(),
        TensorValues::I64(values) => values.iter().map(|v| *v as u64).collect(),
    }
}

fn tensor_bits(tensor: &TensorData) -> Vec<u64> {
    value_bits(tensor.values())
}

fn request_bits(request: &ForwardBackwardRequest) -> Vec<u64> {
    let tensors = request
        .data
        .iter()
        .flat_map(|d| d.loss_fn_inputs().values());
    let options = request.loss_fn.config().into_values();
    let options = options.filter_map(|option| match option {
        LossConfigValue::Number(number) => Some(number.to_bits()),
        LossConfigValue::Text(_) => None,
    });
    tensors.flat_map(tensor_bits).chain(options).collect()
}

fn output_bits(output: &ForwardBackwardOutput) -> Vec<u64> {
    let fields = output.records.iter().flat_map(|r| r.fields().values());
    let metrics = output.metrics.values().map(|metric| metric.to_bits());
    fields
        .flat_map(|f| value_bits(f.values()))
        .chain(metrics)
        .collect()
}

fn sample_bits(output: &SampleOutput) -> Vec<u64> {
    let sequences = output.sequences.iter();
    let of_sequences = sequences.flat_map(|s| {
        [
            s.logprobs.as_deref(),
            s.topk_logprobs.as_ref().map(|t| t.logprobs()),
        ]
    });
    let of_prompt = [
        output.prompt_logprobs.as_deref(),
        output.topk_prompt_logprobs.as_ref().map(|t| t.logprobs()),
    ];
    let logprobs = of_sequences.chain(of_prompt).flatten().flatten();
    let draws = output
        .prompt_alt_tokens
        .iter()
        .flat_map(|d| [&d.tokens, &d.logprobs]);
    let tensors = output.target_prompt_logprobs.iter().chain(draws);
    logprobs
        .map(|logprob| u64::from(logprob.to_bits()))
        .chain(tensors.flat_map(tensor_bits))
        .collect()
}
