//! `POST /asample`: samples from a model.
//!
//! The answer is a promise; its result is a `SampleResponse` message, or JSON for clients to
//! 0.24. Sequence ids come with the promise and are not repeated in the result.

use crate::json::{Body, body};
use crate::little_endian as le;
use crate::proto::{self, StopReason as ProtoStopReason};
use crate::{DecodeError, header, model_input, tensor};
use bytes::Bytes;
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tinkrs_types::protocol::JsonNumber;
use tinkrs_types::sampling::{
    PromptAltTokens, SampledSequence, StopReason, TOPK_FILLER_LOGPROB, TopkLogprobs,
};
use tinkrs_types::{
    InvalidInput, ModelInput, SampleOutput, SamplingParams, SamplingSessionId, TensorData,
};

/// Samples from a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SampleRequest {
    /// How many sequences.
    #[serde(default = "one")]
    pub num_samples: u32,
    /// What comes before them.
    #[serde(with = "model_input::json")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "model_input::json::Chunks<'static>")
    )]
    pub prompt: ModelInput,
    /// How to draw.
    pub sampling_params: SamplingParams,
    /// The sampling session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sampling_session_id: Option<SamplingSessionId>,
    /// The request's number in the sampling session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seq_id: Option<u64>,
    /// A model to sample from without a session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base_model: Option<String>,
    /// A checkpoint to sample from without a session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model_path: Option<String>,
    /// Reports the log-probability of each prompt token.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prompt_logprobs: Option<bool>,
    /// Reports this many of the likeliest tokens at each prompt position.
    #[serde(default)]
    pub topk_prompt_logprobs: u32,
    /// Reports this many of the likeliest tokens at each sampled position.
    #[serde(default)]
    pub topk_sample_logprobs: u32,
    /// Reports the log-probabilities of these tokens.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target_prompt_logprobs: Option<TensorData>,
    /// Reports this many draws at each prompt position.
    #[serde(default)]
    pub prompt_alt_tokens_k: u32,
    /// Reports on the last so many prompt positions only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prompt_logprobs_last_n: Option<u32>,
    /// Records what the loss `stable_reinforce` needs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub record_stability_info: Option<bool>,
}

body!(SampleRequest, "sample");

/// Most tokens have five or six digits; then there is the comma.
const USUAL_TOKEN_BYTES: usize = 7;

fn one() -> u32 {
    1
}

/// Writes a request whose prompt and number are kept apart from it, and whose own are empty.
///
/// Tries of a sample differ in their number only. And since the prompt is most of a request, its
/// tokens are written by hand, in half the time that serde takes.
pub fn encode_apart(request: &SampleRequest, prompt: &ModelInput, seq_id: u64) -> Vec<u8> {
    const CHUNKS: &[u8] = br#""chunks":["#;
    #[derive(Serialize)]
    struct Numbered<'a> {
        #[serde(flatten)]
        request: &'a SampleRequest,
        seq_id: u64,
        r#type: Option<&'static str>,
    }
    let frame = serde_json::to_vec(&Numbered {
        request,
        seq_id,
        r#type: SampleRequest::TYPE,
    })
    .expect("a sample request has text keys and finite numbers");
    // Only a number comes before the prompt, so the first place that looks like it is it.
    let found = frame.windows(CHUNKS.len()).position(|text| text == CHUNKS);
    let place = found.expect("a request has a prompt") + CHUNKS.len();
    let estimate = prompt.len().unwrap_or(0) * USUAL_TOKEN_BYTES;
    let mut body = Vec::with_capacity(frame.len() + estimate);
    body.extend_from_slice(&frame[..place]);
    model_input::json::append_chunks(&mut body, prompt);
    body.extend_from_slice(&frame[place..]);
    body
}

/// Writes a result as a `SampleResponse` message.
pub fn encode_result(output: SampleOutput) -> Vec<u8> {
    let sequence = |sequence: SampledSequence| proto::SampledSequence {
        // The message knows these two; a reason of its own would have to be added to it.
        stop_reason: match sequence.stop_reason {
            StopReason::Length => ProtoStopReason::Length.into(),
            _ => ProtoStopReason::Stop.into(),
        },
        tokens: le::lend(sequence.tokens),
        logprobs: sequence.logprobs.map(le::lend),
        topk_sampled_logprobs: sequence.topk_logprobs.map(topk_to_proto),
    };
    let alternatives = |draws: PromptAltTokens| proto::PromptAltTokens {
        tokens: Some(tensor::to_proto(draws.tokens)),
        logprobs: Some(tensor::to_proto(draws.logprobs)),
    };
    proto::SampleResponse {
        sequences: output.sequences.into_iter().map(sequence).collect(),
        prompt_logprobs: output.prompt_logprobs.map(le::lend),
        topk_prompt_logprobs: output.topk_prompt_logprobs.map(topk_to_proto),
        prompt_cache_hit_tokens: i32::try_from(output.prompt_cache_hit_tokens).unwrap_or(i32::MAX),
        target_prompt_logprobs: output.target_prompt_logprobs.map(tensor::to_proto),
        prompt_alt_tokens: output.prompt_alt_tokens.map(alternatives),
    }
    .encode_to_vec()
}

/// Reads a result, as a message or, from older servers, as JSON.
///
/// # Errors
/// If the bytes are not a result.
pub fn decode_result(content_type: &str, body: Bytes) -> Result<SampleOutput, DecodeError> {
    if content_type.contains(header::PROTOBUF) {
        decode_message(proto::SampleResponse::decode(body)?).map_err(Into::into)
    } else {
        decode_json(&body)
    }
}

fn decode_message(message: proto::SampleResponse) -> Result<SampleOutput, InvalidInput> {
    let sequence = |(index, sequence): (usize, proto::SampledSequence)| {
        sequence_from_proto(sequence).map_err(|e| e.inside(&format!("sequences[{index}]")))
    };
    let mut output = SampleOutput::default();
    output.sequences = message
        .sequences
        .into_iter()
        .enumerate()
        .map(sequence)
        .collect::<Result<_, _>>()?;
    output.prompt_logprobs = read_logprobs("prompt_logprobs", message.prompt_logprobs)?;
    output.topk_prompt_logprobs = message
        .topk_prompt_logprobs
        .map(topk_from_proto)
        .transpose()?
        .flatten();
    output.prompt_cache_hit_tokens = message.prompt_cache_hit_tokens.try_into().unwrap_or(0);
    output.target_prompt_logprobs = message
        .target_prompt_logprobs
        .map(tensor::from_proto)
        .transpose()?;
    if let Some(draws) = message.prompt_alt_tokens {
        let read = |field: &str, tensor: Option<proto::Tensor>| {
            tensor::from_proto(tensor.unwrap_or_default())
                .map_err(|e| e.inside(&format!("prompt_alt_tokens.{field}")))
        };
        output.prompt_alt_tokens = Some(PromptAltTokens::new(
            read("tokens", draws.tokens)?,
            read("logprobs", draws.logprobs)?,
        ));
    }
    Ok(output)
}

fn sequence_from_proto(message: proto::SampledSequence) -> Result<SampledSequence, InvalidInput> {
    let stop_reason = match ProtoStopReason::try_from(message.stop_reason) {
        Ok(ProtoStopReason::Stop) => StopReason::Stop,
        Ok(ProtoStopReason::Length) => StopReason::Length,
        Err(_) => {
            return Err(InvalidInput::new(
                "stop_reason",
                message.stop_reason,
                "0 or 1",
            ));
        }
    };
    let mut sequence =
        SampledSequence::new(le::read_tokens("tokens", &message.tokens)?, stop_reason);
    sequence.logprobs = read_logprobs("logprobs", message.logprobs)?;
    if let Some(logprobs) = sequence
        .logprobs
        .as_ref()
        .filter(|l| l.len() != sequence.tokens.len())
    {
        let allowed = format!("{}, one for each token", sequence.tokens.len());
        return Err(InvalidInput::new("logprobs", logprobs.len(), allowed));
    }
    sequence.topk_logprobs = message
        .topk_sampled_logprobs
        .map(topk_from_proto)
        .transpose()?
        .flatten();
    Ok(sequence)
}

/// Reads log-probabilities; an empty field means that there are none.
fn read_logprobs(
    field: &'static str,
    bytes: Option<Bytes>,
) -> Result<Option<Vec<f32>>, InvalidInput> {
    match bytes {
        Some(bytes) if !bytes.is_empty() => le::read(field, &bytes).map(Some),
        _ => Ok(None),
    }
}

fn topk_to_proto(topk: TopkLogprobs) -> proto::TopkLogprobs {
    let (k, length) = (topk.k() as u32, topk.len() as u32);
    let (token_ids, logprobs) = topk.into_parts();
    proto::TopkLogprobs {
        token_ids: le::lend(token_ids),
        logprobs: le::lend(logprobs),
        k,
        length,
    }
}

/// Reads the likeliest tokens; no positions or no columns mean that there are none.
fn topk_from_proto(message: proto::TopkLogprobs) -> Result<Option<TopkLogprobs>, InvalidInput> {
    if message.k == 0 || message.length == 0 {
        return Ok(None);
    }
    let topk = TopkLogprobs::new(
        message.k as usize,
        le::read_tokens("token_ids", &message.token_ids)?,
        le::read("logprobs", &message.logprobs)?,
    )?;
    if topk.len() != message.length as usize {
        let allowed = format!("{}, the stated length", message.length);
        return Err(InvalidInput::new(
            "topk_logprobs",
            format_args!("{} rows", topk.len()),
            allowed,
        ));
    }
    Ok(Some(topk))
}

/// Writes a result as JSON, for clients to 0.24.
pub fn encode_json_result(output: &SampleOutput) -> Value {
    let sequences: Vec<Value> = output
        .sequences
        .iter()
        .map(|sequence| {
            json!({
                "stop_reason": sequence.stop_reason,
                "tokens": sequence.tokens,
                "logprobs": sequence.logprobs.as_deref().map(numbers),
            })
        })
        .collect();
    let prompt_logprobs = output.prompt_logprobs.as_ref().map(|logprobs| {
        // NaN means that none was computed, and so does null.
        let computed = |p: &f32| (!p.is_nan()).then_some(JsonNumber::from(*p));
        logprobs.iter().map(computed).collect::<Vec<_>>()
    });
    let topk = output.topk_prompt_logprobs.as_ref().map(|topk| {
        let row = |position| {
            let cells = topk.row(position)?;
            let cells = cells.map(|(token, logprob)| (token, JsonNumber::from(logprob)));
            Some(cells.collect::<Vec<_>>())
        };
        (0..topk.len()).map(row).collect::<Vec<_>>()
    });
    json!({
        "sequences": sequences,
        "prompt_logprobs": prompt_logprobs,
        "topk_prompt_logprobs": topk,
        "type": "sample",
    })
}

fn numbers(values: &[f32]) -> Vec<JsonNumber> {
    values.iter().copied().map(JsonNumber::from).collect()
}

/// A row of the likeliest tokens; `None` where nothing was computed.
type TopkRow = Option<Vec<(u32, JsonNumber)>>;

/// A result, as JSON.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "SampleResult"))]
pub(crate) struct JsonResult {
    sequences: Vec<JsonSequence>,
    prompt_logprobs: Option<Vec<Option<JsonNumber>>>,
    topk_prompt_logprobs: Option<Vec<TopkRow>>,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "SampledSequence"))]
struct JsonSequence {
    stop_reason: StopReason,
    tokens: Vec<u32>,
    logprobs: Option<Vec<JsonNumber>>,
}

fn decode_json(body: &[u8]) -> Result<SampleOutput, DecodeError> {
    let json: JsonResult = serde_json::from_slice(body)?;
    let sequence = |json: JsonSequence| {
        let mut sequence = SampledSequence::new(json.tokens, json.stop_reason);
        sequence.logprobs = json
            .logprobs
            .map(|l| l.into_iter().map(|p| p.0 as f32).collect());
        sequence
    };
    let mut output = SampleOutput::default();
    output.sequences = json.sequences.into_iter().map(sequence).collect();
    output.prompt_logprobs = json.prompt_logprobs.map(|logprobs| {
        logprobs
            .into_iter()
            .map(|p| p.map_or(f32::NAN, |p| p.0 as f32))
            .collect()
    });
    output.topk_prompt_logprobs = match json.topk_prompt_logprobs {
        Some(rows) => topk_from_rows(&rows)?,
        None => None,
    };
    Ok(output)
}

fn topk_from_rows(rows: &[TopkRow]) -> Result<Option<TopkLogprobs>, InvalidInput> {
    let k = rows.iter().flatten().map(Vec::len).max().unwrap_or(0);
    if k == 0 {
        return Ok(None);
    }
    // Rows are padded to the longest. Its length and the number of rows come from the sender.
    if rows.len().saturating_mul(k) > TensorData::MAX_SPARSE_CELLS {
        return Err(InvalidInput::new(
            "topk_prompt_logprobs",
            format_args!("{} rows of up to {k}", rows.len()),
            format!("at most {} cells in all", TensorData::MAX_SPARSE_CELLS),
        ));
    }
    let filler = std::iter::repeat((0, TOPK_FILLER_LOGPROB));
    let cells = rows.iter().flat_map(|row| {
        row.as_deref()
            .unwrap_or_default()
            .iter()
            .map(|(token, logprob)| (*token, logprob.0 as f32))
            .chain(filler.clone())
            .take(k)
    });
    let (token_ids, logprobs) = cells.unzip();
    TopkLogprobs::new(k, token_ids, logprobs).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_parts_reads_like_one_in_a_piece() {
        let image = tinkrs_types::input::Image::new([7; 5], tinkrs_types::input::ImageFormat::Png);
        let mut several = ModelInput::from_tokens([1, 20, 300]);
        several.push_image(image);
        several.push_tokens([]);
        for prompt in [ModelInput::new(), ModelInput::from_tokens([0]), several] {
            let request = |prompt, seq_id| SampleRequest {
                num_samples: 2,
                prompt,
                sampling_params: SamplingParams::new(9),
                sampling_session_id: Some(r#"a "chunks":[ b"#.into()),
                seq_id,
                base_model: None,
                model_path: None,
                prompt_logprobs: Some(false),
                topk_prompt_logprobs: 0,
                topk_sample_logprobs: 3,
                target_prompt_logprobs: None,
                prompt_alt_tokens_k: 0,
                prompt_logprobs_last_n: None,
                record_stability_info: None,
            };
            let parts = encode_apart(&request(ModelInput::new(), None), &prompt, 77);
            let read = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap();
            let piece = request(prompt, Some(77)).encode();
            assert_eq!(read(&parts), read(&piece));
        }
    }

    #[test]
    fn a_result_survives_the_json_of_older_clients() {
        let body = json!({
            "sequences": [{"stop_reason": "length", "tokens": [1, 2], "logprobs": [-0.5, "NaN"]}],
            "prompt_logprobs": [null, -0.5, "-inf"],
            "topk_prompt_logprobs": [null, [[5, -0.125], [9, -2.0]], [[5, 0.0], [9, "-inf"]]],
            "type": "sample",
        });
        let output = decode_result("application/json", body.to_string().into()).unwrap();
        assert!(output.prompt_logprobs.as_ref().unwrap()[0].is_nan());
        assert_eq!(encode_json_result(&output), body);
    }

    #[test]
    fn a_long_row_among_many_empty_ones_is_refused_rather_than_padded() {
        let row = vec![(1, JsonNumber(-0.5)); 1 << 14];
        let mut rows: Vec<TopkRow> = vec![None; 1 << 14];
        rows.push(Some(row));
        let error = topk_from_rows(&rows).unwrap_err();
        assert_eq!(error.field(), "topk_prompt_logprobs");
    }
}
