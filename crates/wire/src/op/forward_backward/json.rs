//! The JSON forms of a pass and of its result, for clients to 0.24.

use super::ForwardBackwardRequest;
use crate::{DecodeError, model_input, strict};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tinkrs_types::protocol::JsonNumber;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::training::{BatchedTensor, LossConfigValue, OutputRecord};
use tinkrs_types::{
    Datum, ForwardBackwardOutput, InvalidInput, LossFn, ModelId, ModelInput, TensorData,
};

/// A request with gradients.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ForwardBackwardRequest"))]
pub(crate) struct JsonRequest {
    forward_backward_input: JsonInput,
    model_id: ModelId,
    seq_id: Option<i32>,
}

/// Reads the body of a request with gradients.
pub(super) fn decode_request(body: &[u8]) -> Result<ForwardBackwardRequest, DecodeError> {
    let json: JsonRequest = strict::decode(body)?;
    json.forward_backward_input
        .into_request(json.model_id, json.seq_id, false)
}

/// The data and the loss as clients to 0.24 send them.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ForwardBackwardInput"))]
pub(in crate::op) struct JsonInput {
    data: Vec<JsonDatum>,
    loss_fn: String,
    #[serde(default)]
    loss_fn_config: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Datum"))]
struct JsonDatum {
    #[serde(with = "model_input::json")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "model_input::json::Chunks<'static>")
    )]
    model_input: ModelInput,
    #[serde(default)]
    loss_fn_inputs: BTreeMap<String, TensorData>,
}

impl JsonInput {
    pub(in crate::op) fn into_request(
        self,
        model_id: ModelId,
        seq_id: Option<i32>,
        forward_only: bool,
    ) -> Result<ForwardBackwardRequest, DecodeError> {
        let option = |(name, value): (String, Value)| match value {
            Value::String(text) => Ok((name, LossConfigValue::Text(text))),
            value => match value.as_f64() {
                Some(number) => Ok((name, LossConfigValue::Number(number))),
                None => Err(InvalidInput::new(
                    format!("loss_fn_config.{name}"),
                    value,
                    "a number or a text",
                )),
            },
        };
        let config = self
            .loss_fn_config
            .unwrap_or_default()
            .into_iter()
            .map(option);
        let datum = |(index, datum): (usize, JsonDatum)| {
            Datum::new(datum.model_input, datum.loss_fn_inputs).map_err(|e| e.at_datum(index))
        };
        Ok(ForwardBackwardRequest {
            model_id,
            seq_id: seq_id.unwrap_or(0),
            data: self
                .data
                .into_iter()
                .enumerate()
                .map(datum)
                .collect::<Result<_, _>>()?,
            loss_fn: LossFn::from_parts(&self.loss_fn, config.collect::<Result<_, _>>()?)?,
            forward_only,
        })
    }
}

/// Writes a request, with the member that its path has for the data.
pub(super) fn encode_request(request: ForwardBackwardRequest) -> Result<Vec<u8>, InvalidInput> {
    #[derive(Serialize)]
    struct Datum {
        #[serde(with = "model_input::json")]
        model_input: ModelInput,
        loss_fn_inputs: BTreeMap<String, TensorData>,
    }
    #[derive(Serialize)]
    struct Input {
        data: Vec<Datum>,
        loss_fn: String,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        loss_fn_config: BTreeMap<String, Value>,
    }
    #[derive(Serialize)]
    struct Body {
        model_id: ModelId,
        seq_id: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        forward_backward_input: Option<Input>,
        #[serde(skip_serializing_if = "Option::is_none")]
        forward_input: Option<Input>,
    }
    let option = |(name, value)| match value {
        LossConfigValue::Number(number) => (name, json!(JsonNumber(number))),
        LossConfigValue::Text(text) => (name, json!(text)),
    };
    let datum = |datum: tinkrs_types::Datum| {
        let (model_input, loss_fn_inputs, _) = datum.into_parts();
        Datum {
            model_input,
            loss_fn_inputs,
        }
    };
    let input = Input {
        data: request.data.into_iter().map(datum).collect(),
        loss_fn: request.loss_fn.name().to_owned(),
        loss_fn_config: request.loss_fn.config().into_iter().map(option).collect(),
    };
    let (forward_input, forward_backward_input) = if request.forward_only {
        (Some(input), None)
    } else {
        (None, Some(input))
    };
    let body = Body {
        model_id: request.model_id,
        seq_id: request.seq_id,
        forward_backward_input,
        forward_input,
    };
    serde_json::to_vec(&body)
        .map_err(|error| InvalidInput::new("data", error, "what JSON has a form for"))
}

/// Writes a result as JSON, for clients to 0.24.
///
/// Tensors have no other members than these clients know.
pub fn encode_json_result(output: &ForwardBackwardOutput) -> Value {
    let mut outputs = Vec::new();
    for record in &output.records {
        for datum in 0..record.datums() {
            let fields = record.fields().iter().map(|(name, field)| {
                let data = match field.values() {
                    TensorValues::F32(_) => {
                        let values = field.f32(datum).unwrap_or_default();
                        values
                            .iter()
                            .map(|value| json!(JsonNumber::from(*value)))
                            .collect()
                    }
                    TensorValues::I64(_) => json!(field.i64(datum)),
                };
                let dtype = field.values().dtype();
                (
                    name.clone(),
                    json!({"data": data, "dtype": dtype, "shape": field.shape(datum)}),
                )
            });
            outputs.push(Value::Object(fields.collect::<Map<_, _>>()));
        }
    }
    let metrics = output.metrics.iter();
    let metrics = metrics.map(|(name, value)| (name.clone(), json!(JsonNumber(*value))));
    json!({
        "loss_fn_output_type": output.output_type,
        "loss_fn_outputs": outputs,
        "metrics": metrics.collect::<Map<_, _>>(),
    })
}

/// A result: the tensors of each datum, and numbers about all of them.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ForwardBackwardResult"))]
pub(crate) struct JsonResult {
    #[serde(default)]
    loss_fn_output_type: String,
    loss_fn_outputs: Vec<BTreeMap<String, TensorData>>,
    #[serde(default)]
    metrics: BTreeMap<String, JsonNumber>,
}

/// Reads the JSON result of an older server.
pub(super) fn decode_result(body: &[u8]) -> Result<ForwardBackwardOutput, DecodeError> {
    let json: JsonResult = serde_json::from_slice(body)?;
    let record = |outputs: BTreeMap<String, TensorData>| {
        let fields = outputs.into_iter().map(|(name, tensor)| {
            let tensor = tensor.into_dense(0);
            let trailing = tensor
                .shape()
                .and_then(|s| s.split_first())
                .map_or(vec![], |s| s.1.to_vec());
            let offsets = vec![0, tensor.values().len()];
            Ok((
                name,
                BatchedTensor::new(tensor.into_values(), offsets, trailing)?,
            ))
        });
        OutputRecord::new(1, fields.collect::<Result<_, InvalidInput>>()?)
    };
    let records = json.loss_fn_outputs.into_iter().map(record);
    let metrics = json.metrics.into_iter();
    Ok(ForwardBackwardOutput::new(
        json.loss_fn_output_type,
        records.collect::<Result<_, _>>()?,
        metrics.map(|(name, value)| (name, value.0)).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_survives_the_json_of_older_clients() {
        let body = json!({
            "loss_fn_output_type": "TorchLossReturn",
            "loss_fn_outputs": [
                {"logprobs": {"data": [-1.0, -2.0], "dtype": "float32", "shape": [2]}},
                {"logprobs": {"data": [-3.0], "dtype": "float32", "shape": [1]}},
            ],
            "metrics": {"loss:sum": 3.0},
        });
        let output = decode_result(body.to_string().as_bytes()).unwrap();
        assert_eq!(output.logprobs(1), Some(&[-3.0][..]));
        assert_eq!(encode_json_result(&output), body);
    }

    #[test]
    fn numbers_that_are_not_finite_reach_older_clients_by_name() {
        let body = json!({
            "loss_fn_output_type": "x",
            "loss_fn_outputs": [
                {"logprobs": {"data": [-0.5, "-inf"], "dtype": "float32", "shape": [2]}},
            ],
            "metrics": {"loss:sum": "NaN"},
        });
        let output = decode_result(body.to_string().as_bytes()).unwrap();
        assert!(output.loss().unwrap().is_nan());
        assert_eq!(encode_json_result(&output), body);
    }

    #[test]
    fn a_sparse_tensor_in_a_json_result_is_made_dense() {
        let body = json!({
            "loss_fn_outputs": [{"logprobs": {
                "data": [-1.0], "dtype": "float32", "shape": [1, 2],
                "sparse_crow_indices": [0, 1], "sparse_col_indices": [1],
            }}],
        });
        let output = decode_result(body.to_string().as_bytes()).unwrap();
        assert_eq!(output.logprobs(0), Some(&[0.0, -1.0][..]));
    }

    #[test]
    fn a_null_in_an_old_pass_means_not_given() {
        let body = br#"{"model_id": "m", "seq_id": null, "forward_backward_input": {
            "loss_fn": "cross_entropy", "loss_fn_config": null, "type": null,
            "data": [{"model_input": {"chunks": [{"tokens": [1], "type": null}]},
                      "loss_fn_inputs": null}]}}"#;
        let request = decode_request(body).unwrap();
        assert_eq!((request.seq_id, request.data.len()), (0, 1));
    }
}
