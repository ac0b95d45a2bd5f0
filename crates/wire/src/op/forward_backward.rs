//! `POST /forward_backward`: computes a loss, and its gradients unless asked not to.
//!
//! Both the request and its result are protobuf messages, and both are large. Encoding lends
//! the vectors of the data to the message, so that each byte is copied once, into the body;
//! decoding shares the body and copies each byte once, into a vector. Clients to 0.24 send and
//! take JSON instead.

use crate::little_endian as le;
use crate::proto::{self, LossConfigValue as ProtoConfigValue, loss_config_value::Value as Arm};
use crate::{DecodeError, header, model_input, number_map, tensor};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use tinkrs_types::training::{
    BatchedTensor, LossConfig, LossConfigValue, LossInputs, OutputRecord, Provenance,
    ProvenanceSpan, SpanSource,
};
use tinkrs_types::{Datum, ForwardBackwardOutput, InvalidInput, LossFn, ModelId};

mod address;
mod bounds;
mod json;

pub use address::Address;
pub(super) use json::JsonInput;
pub use json::encode_json_result;
pub(crate) use json::{JsonRequest, JsonResult};

/// Computes a loss over data.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardBackwardRequest {
    /// Which model.
    pub model_id: ModelId,
    /// The request's place in the model's order, from 1; 0 means that the client gave none.
    pub seq_id: i32,
    /// The data.
    pub data: Vec<Datum>,
    /// The loss.
    pub loss_fn: LossFn,
    /// Computes no gradients.
    pub forward_only: bool,
}

impl ForwardBackwardRequest {
    /// Writes the request. It takes the data, to lend it rather than copy it.
    ///
    /// # Errors
    /// If a datum cannot be sent; the error names its index.
    pub fn encode(self) -> Result<Vec<u8>, InvalidInput> {
        let config = self.loss_fn.config();
        let number = |(name, value): (&String, &LossConfigValue)| match value {
            LossConfigValue::Number(number) => Some((name.clone(), *number)),
            LossConfigValue::Text(_) => None,
        };
        // Numbers go into both maps: servers that predate the second one read the first.
        let numbers: BTreeMap<String, f64> = config.iter().filter_map(number).collect();
        let mut tail = number_map::LossFnConfig::from(numbers).encode_to_vec();
        let last_fields = proto::ForwardBackwardRequest {
            forward_only: self.forward_only,
            loss_fn_config_v2: config.into_iter().map(write_option).collect(),
            ..Default::default()
        };
        tail.extend(last_fields.encode_to_vec());

        let data = self.data.into_iter().enumerate();
        let data = data.map(|(index, datum)| write_datum(datum).map_err(|e| e.at_datum(index)));
        let first_fields = proto::ForwardBackwardRequest {
            model_id: self.model_id.into_string(),
            seq_id: self.seq_id,
            data: data.collect::<Result<_, _>>()?,
            loss_fn: self.loss_fn.name().to_owned(),
            ..Default::default()
        };
        Ok(number_map::encode_before(&first_fields, &tail))
    }

    /// Reads a request.
    ///
    /// # Errors
    /// If the bytes are not a request, or a value in it is wrong; the error names the datum.
    pub fn decode(body: Bytes) -> Result<Self, DecodeError> {
        bounds::check(&body)?;
        let message = proto::ForwardBackwardRequest::decode(body)?;
        let config = if message.loss_fn_config_v2.is_empty() {
            let numbers = message.loss_fn_config.into_iter();
            numbers
                .map(|(name, number)| (name, LossConfigValue::Number(number)))
                .collect()
        } else {
            let options = message.loss_fn_config_v2.into_iter();
            options
                .map(read_option)
                .collect::<Result<LossConfig, _>>()?
        };
        let data = message.data.into_iter().enumerate();
        let data = data.map(|(index, datum)| read_datum(datum).map_err(|e| e.at_datum(index)));
        Ok(Self {
            model_id: message.model_id.into(),
            seq_id: message.seq_id,
            data: data.collect::<Result<_, _>>()?,
            loss_fn: LossFn::from_parts(&message.loss_fn, config)?,
            forward_only: message.forward_only,
        })
    }

    /// Estimates how much memory decoding a message takes, from its counts alone.
    pub fn decoded_bytes(body: &[u8]) -> u64 {
        bounds::decoded_bytes(body)
    }

    /// Writes the request as clients to 0.24 do, for servers that take nothing else.
    ///
    /// Such servers have [`forward`](super::forward)'s path for a request without gradients, and no
    /// provenance.
    ///
    /// # Errors
    /// If a datum cannot be sent; the error names its index.
    pub fn encode_json(self) -> Result<Vec<u8>, InvalidInput> {
        json::encode_request(self)
    }

    /// Reads the JSON of a client to 0.24.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and for a member that nothing reads.
    pub fn decode_json(body: &[u8]) -> Result<Self, DecodeError> {
        json::decode_request(body)
    }
}

fn write_option((name, value): (String, LossConfigValue)) -> (String, ProtoConfigValue) {
    let arm = match value {
        LossConfigValue::Number(number) => Arm::Number(number),
        LossConfigValue::Text(text) => Arm::Text(text),
    };
    (name, ProtoConfigValue { value: Some(arm) })
}

fn read_option(
    (name, value): (String, ProtoConfigValue),
) -> Result<(String, LossConfigValue), InvalidInput> {
    match value.value {
        Some(Arm::Number(number)) => Ok((name, LossConfigValue::Number(number))),
        Some(Arm::Text(text)) => Ok((name, LossConfigValue::Text(text))),
        None => Err(InvalidInput::new(
            format!("loss_fn_config.{name}"),
            "nothing",
            "a number or a text",
        )),
    }
}

fn write_datum(datum: Datum) -> Result<proto::Datum, InvalidInput> {
    let (model_input, inputs, provenance) = datum.into_parts();
    let provenance = provenance.unwrap_or_default();
    let inputs = inputs
        .into_iter()
        .map(|(name, tensor)| (name, tensor::to_proto(tensor)));
    Ok(proto::Datum {
        model_input: model_input::to_proto(model_input)?,
        loss_fn_inputs: inputs.collect(),
        model_input_spans: provenance.model_input.iter().map(write_span).collect(),
        loss_fn_input_spans: provenance.loss_fn_inputs.iter().map(write_span).collect(),
    })
}

fn read_datum(message: proto::Datum) -> Result<Datum, InvalidInput> {
    let read = |(name, tensor): (String, proto::Tensor)| match tensor::from_proto(tensor) {
        Ok(tensor) => Ok((name, tensor)),
        Err(error) => Err(error.inside(&name)),
    };
    let inputs = message
        .loss_fn_inputs
        .into_iter()
        .map(read)
        .collect::<Result<LossInputs, _>>()?;
    let datum = Datum::new(model_input::from_proto(message.model_input)?, inputs)?;
    if message.model_input_spans.is_empty() && message.loss_fn_input_spans.is_empty() {
        return Ok(datum);
    }
    let spans = |spans: Vec<proto::ProvenanceSpan>| spans.into_iter().map(read_span).collect();
    datum.with_provenance(Provenance {
        model_input: Result::from_iter::<Vec<_>>(spans(message.model_input_spans))?,
        loss_fn_inputs: Result::from_iter::<Vec<_>>(spans(message.loss_fn_input_spans))?,
    })
}

fn write_span(span: &ProvenanceSpan) -> proto::ProvenanceSpan {
    use proto::provenance_span::Span;
    let sequence_id = span.sequence().as_str().to_owned();
    // A span's constructor made sure that both fit.
    let (offset, length) = (span.offset() as i64, span.length() as i64);
    let arm = match span.source() {
        SpanSource::Prompt => Span::PromptTokens(proto::PromptProvenanceSpan {
            sequence_id,
            offset,
            length,
        }),
        SpanSource::Sampled => Span::SampledTokens(proto::SampledProvenanceSpan {
            sequence_id,
            offset,
            length,
        }),
    };
    proto::ProvenanceSpan { span: Some(arm) }
}

fn read_span(message: proto::ProvenanceSpan) -> Result<ProvenanceSpan, InvalidInput> {
    use proto::provenance_span::Span;
    let count = |field: &'static str, value: i64| {
        u64::try_from(value).map_err(|_| InvalidInput::new(field, value, "0 or more"))
    };
    match message.span {
        Some(Span::PromptTokens(span)) => ProvenanceSpan::prompt(
            span.sequence_id.into(),
            count("offset", span.offset)?,
            count("length", span.length)?,
        ),
        Some(Span::SampledTokens(span)) => ProvenanceSpan::sampled(
            span.sequence_id.into(),
            count("offset", span.offset)?,
            count("length", span.length)?,
        ),
        None => Err(InvalidInput::new(
            "span",
            "nothing",
            "prompt_tokens or sampled_tokens",
        )),
    }
}

/// Writes a result as a `ForwardBackwardOutput` message.
pub fn encode_result(output: ForwardBackwardOutput) -> Vec<u8> {
    let field = |(name, field): (String, BatchedTensor)| {
        let (values, offsets, trailing_shape) = field.into_parts();
        let size = values.dtype().size_bytes();
        let (dtype, data) = tensor::values_to_bytes(values);
        let offsets = offsets
            .into_iter()
            .map(|offset| (offset * size) as i64)
            .collect();
        let batched = proto::BatchedTensor {
            data,
            offsets: le::lend::<i64>(offsets),
            dtype: dtype.into(),
            trailing_shape: trailing_shape.into_iter().map(|size| size as i64).collect(),
        };
        (name, batched)
    };
    let record = |record: OutputRecord| {
        let num_datums = record.datums() as i64;
        let fields = record.into_fields().into_iter().map(field).collect();
        proto::ArrayRecord {
            type_tag: String::new(),
            fields,
            num_datums,
        }
    };
    let first_fields = proto::ForwardBackwardOutput {
        loss_fn_output_type: output.output_type,
        loss_fn_outputs: output.records.into_iter().map(record).collect(),
        ..Default::default()
    };
    let metrics = number_map::Metrics::from(output.metrics);
    number_map::encode_before(&first_fields, &metrics.encode_to_vec())
}

/// Reads a result, as a message or, from older servers, as JSON.
///
/// # Errors
/// If the bytes are not a result.
pub fn decode_result(
    content_type: &str,
    body: Bytes,
) -> Result<ForwardBackwardOutput, DecodeError> {
    if content_type.contains(header::PROTOBUF) {
        decode_message(proto::ForwardBackwardOutput::decode(body)?).map_err(Into::into)
    } else {
        json::decode_result(&body)
    }
}

fn decode_message(
    message: proto::ForwardBackwardOutput,
) -> Result<ForwardBackwardOutput, InvalidInput> {
    let counts = message.loss_fn_outputs.iter();
    let is_counted = counts
        .map(|record| record.num_datums)
        .any(|count| count != 0);
    let record = |record: proto::ArrayRecord| {
        let fields = record.fields.into_iter();
        let fields: BTreeMap<String, BatchedTensor> = fields
            .map(|(name, field)| match read_batched(field) {
                Ok(field) => Ok((name, field)),
                Err(error) => Err(error.inside(&name)),
            })
            .collect::<Result<_, _>>()?;
        // Some servers leave the count out; then the fields tell it.
        let counted = fields.values().next().map_or(0, BatchedTensor::datums);
        let datums = if is_counted {
            usize::try_from(record.num_datums)
                .map_err(|_| InvalidInput::new("num_datums", record.num_datums, "0 or more"))?
        } else {
            counted
        };
        OutputRecord::new(datums, fields)
    };
    let records = message
        .loss_fn_outputs
        .into_iter()
        .map(record)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(ForwardBackwardOutput::new(
        displayed_type(message.loss_fn_output_type, records.is_empty()),
        records,
        message.metrics,
    ))
}

/// Returns the name of the output's type without its module.
fn displayed_type(name: String, no_outputs: bool) -> String {
    match (no_outputs, name.rsplit_once(':')) {
        (true, _) if name.is_empty() => "ArrayRecord".to_owned(),
        (false, Some((_, name))) => name.to_owned(),
        _ => name,
    }
}

fn read_batched(message: proto::BatchedTensor) -> Result<BatchedTensor, InvalidInput> {
    let dtype = message.dtype();
    let values = tensor::values_from_bytes(dtype, &message.data)?;
    let size = match dtype {
        proto::DType::DtypeInt64 => 8,
        proto::DType::DtypeBfloat16 => 2,
        _ => 4,
    };
    let offsets = le::read::<i64>("offsets", &message.offsets)?;
    let element = |bytes: i64| match usize::try_from(bytes) {
        Ok(bytes) if bytes.is_multiple_of(size) => Ok(bytes / size),
        _ => Err(InvalidInput::new(
            "offsets",
            format_args!("{bytes} bytes"),
            format!("a multiple of {size}, the size of an element"),
        )),
    };
    let offsets = offsets.into_iter().map(element).collect::<Result<_, _>>()?;
    BatchedTensor::new(
        values,
        offsets,
        tensor::read_shape(&message.trailing_shape)?,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_counts_of_datums_are_refused() {
        for counts in [&[i64::MAX, i64::MAX][..], &[-2, 2], &[1 << 40]] {
            let record = |num_datums| proto::ArrayRecord {
                num_datums,
                ..Default::default()
            };
            let message = proto::ForwardBackwardOutput {
                loss_fn_outputs: counts.iter().copied().map(record).collect(),
                ..Default::default()
            };
            let error = decode_message(message).unwrap_err();
            assert_eq!(error.field(), "num_datums", "{counts:?}");
        }
    }

    #[test]
    fn a_token_that_does_not_fit_is_named_by_datum_chunk_and_position() {
        let good = Datum::supervised(vec![1_u32], [2], [1.0]).unwrap();
        let bad = Datum::supervised(vec![1, u32::MAX], [2, 3], [1.0, 1.0]).unwrap();
        let request = ForwardBackwardRequest {
            model_id: "m".into(),
            seq_id: 1,
            data: vec![good, bad],
            loss_fn: LossFn::CrossEntropy,
            forward_only: false,
        };
        let error = request.encode().unwrap_err().to_string();
        assert!(
            error.starts_with("datum 1: `model_input.chunks[0].tokens`: found -1 at position 1"),
            "{error}"
        );
    }
}
