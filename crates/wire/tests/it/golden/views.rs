//! Our values in the form in which the vectors show what the SDK's users see.

use serde_json::{Map, Value, json};
use tinkrs_types::input::Chunk;
use tinkrs_types::sampling::TopkLogprobs;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::training::{LossConfigValue, ProvenanceSpan, SpanSource};
use tinkrs_types::{Datum, ForwardBackwardOutput, SampleOutput, TensorData};
use tinkrs_wire::Body;
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

/// A number; JSON has no form for the ones that are not finite.
pub(super) fn number(value: f64) -> Value {
    if value.is_finite() {
        return json!(value);
    }
    let name = match value {
        f64::INFINITY => "inf",
        f64::NEG_INFINITY => "-inf",
        _ => "nan",
    };
    name.into()
}

fn floats(values: &[f32]) -> Value {
    values.iter().map(|v| number(f64::from(*v))).collect()
}

fn values(values: &TensorValues) -> Value {
    match values {
        TensorValues::F32(values) => floats(values),
        TensorValues::I64(values) => json!(values),
    }
}

fn tensor(tensor: &TensorData) -> Value {
    json!({
        "data": values(tensor.values()),
        "dtype": tensor.dtype(),
        "shape": tensor.shape(),
        "sparse_crow_indices": tensor.csr().map(|csr| &csr.crow),
        "sparse_col_indices": tensor.csr().map(|csr| &csr.col),
    })
}

pub(super) fn request(request: &ForwardBackwardRequest) -> Value {
    let config: Map<String, Value> = request
        .loss_fn
        .config()
        .into_iter()
        .map(|(name, value)| match value {
            LossConfigValue::Number(value) => (name, number(value)),
            LossConfigValue::Text(text) => (name, text.into()),
        })
        .collect();
    json!({
        "model_id": request.model_id,
        "seq_id": (request.seq_id != 0).then_some(request.seq_id),
        "loss_fn": request.loss_fn.name(),
        "loss_fn_config": (!config.is_empty()).then_some(config),
        "forward_only": request.forward_only,
        "data": request.data.iter().map(datum).collect::<Vec<_>>(),
    })
}

fn datum(datum: &Datum) -> Value {
    let inputs = datum.loss_fn_inputs().iter();
    let inputs: Map<String, Value> = inputs.map(|(name, t)| (name.clone(), tensor(t))).collect();
    let spans = |spans: &[ProvenanceSpan]| spans.iter().map(span).collect::<Value>();
    let provenance = datum.provenance();
    json!({
        "model_input": datum.model_input().chunks().iter().map(chunk).collect::<Vec<_>>(),
        "loss_fn_inputs": inputs,
        "model_input_spans": provenance.map(|p| spans(&p.model_input)),
        "loss_fn_input_spans": provenance.map(|p| spans(&p.loss_fn_inputs)),
    })
}

/// A chunk as the SDK shows it, which is its JSON form with every member.
fn chunk(chunk: &Chunk) -> Value {
    let prompt = json!({"prompt": {"chunks": []}, "sampling_params": {}}).to_string();
    let mut request = SampleRequest::decode(prompt.as_bytes()).unwrap();
    request.prompt.push(chunk.clone());
    let mut body: Value = serde_json::from_slice(&request.encode()).unwrap();
    let mut shown = body["prompt"]["chunks"][0].take();
    if matches!(chunk, Chunk::Image(_) | Chunk::ImageAssetPointer(_)) {
        let members = shown.as_object_mut().unwrap();
        members.entry("expected_tokens").or_insert(Value::Null);
    }
    shown
}

fn span(span: &ProvenanceSpan) -> Value {
    let kind = match span.source() {
        SpanSource::Prompt => "prompt",
        SpanSource::Sampled => "sampled",
    };
    json!({
        "kind": kind,
        "sequence_id": span.sequence(),
        "offset": span.offset(),
        "length": span.length(),
    })
}

pub(super) fn sample(output: &SampleOutput) -> Value {
    let sequences = output.sequences.iter().map(|sequence| {
        json!({
            "stop_reason": sequence.stop_reason,
            "tokens": sequence.tokens,
            "logprobs": sequence.logprobs.as_deref().map(floats),
            "topk_logprobs": sequence.topk_logprobs.as_ref().map(topk),
        })
    });
    let prompt_logprobs = output.prompt_logprobs.as_ref().map(|logprobs| {
        let shown = (0..logprobs.len()).map(|position| output.prompt_logprob(position));
        shown
            .map(|p| p.map(|p| number(p.into())))
            .collect::<Vec<_>>()
    });
    json!({
        "sequences": sequences.collect::<Vec<_>>(),
        "prompt_logprobs": prompt_logprobs,
        "topk_prompt_logprobs": output.topk_prompt_logprobs.as_ref().map(topk),
        "target_prompt_logprobs": output.target_prompt_logprobs.as_ref().map(tensor),
        "prompt_alt_tokens": output.prompt_alt_tokens.as_ref().map(|draws| json!({
            "tokens": tensor(&draws.tokens),
            "logprobs": tensor(&draws.logprobs),
        })),
        "prompt_cache_hit_tokens": output.prompt_cache_hit_tokens,
    })
}

fn topk(topk: &TopkLogprobs) -> Value {
    let row = |position| {
        let cells = topk.row(position)?;
        Some(cells.collect::<Vec<(u32, f32)>>())
    };
    (0..topk.len()).map(row).map(|row| json!(row)).collect()
}

pub(super) fn output(output: &ForwardBackwardOutput) -> Value {
    let mut outputs = Vec::new();
    for record in &output.records {
        for datum in 0..record.datums() {
            let fields = record.fields().iter().map(|(name, field)| {
                let data = match field.values() {
                    TensorValues::F32(_) => floats(field.f32(datum).unwrap()),
                    TensorValues::I64(_) => json!(field.i64(datum).unwrap()),
                };
                let shown = json!({
                    "data": data,
                    "dtype": field.values().dtype(),
                    "shape": field.shape(datum),
                    "sparse_crow_indices": null,
                    "sparse_col_indices": null,
                });
                (name.clone(), shown)
            });
            outputs.push(Value::Object(fields.collect()));
        }
    }
    let metrics = output.metrics.iter();
    let metrics: Map<String, Value> = metrics.map(|(k, v)| (k.clone(), number(*v))).collect();
    json!({
        "loss_fn_output_type": output.output_type,
        "loss_fn_outputs": outputs,
        "metrics": metrics,
    })
}
