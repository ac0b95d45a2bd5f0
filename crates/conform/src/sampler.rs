//! A sampler of a case.

use crate::case::{Stop, ensure};
use crate::trial::{Answer, Trial, failed};
use crate::wire::Sent;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use tinkrs_types::SampleOutput;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::sampling::SampledSequence;
use tinkrs_wire::op::asample::decode_result;
use tinkrs_wire::{endpoint, header};

/// Weights to sample from.
#[derive(Debug)]
pub(crate) struct Sampler<'a> {
    pub(crate) trial: &'a Trial,
    pub(crate) id: String,
    next: AtomicU64,
}

impl<'a> Sampler<'a> {
    pub(crate) fn new(trial: &'a Trial, id: String) -> Self {
        let next = AtomicU64::new(0);
        Self { trial, id, next }
    }

    pub(crate) fn seq_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The body of a request for samples. `params` and `more` replace the client's defaults.
    pub(crate) fn body(&self, seq_id: u64, prompt: &[u32], params: &Value, more: &Value) -> Value {
        let mut sampling = json!({"max_tokens": 8, "temperature": 1.0, "top_k": -1, "top_p": 1.0});
        for (name, value) in params.as_object().into_iter().flatten() {
            sampling[name] = value.clone();
        }
        let mut body = json!({"num_samples": 1, "sampling_params": sampling,
            "prompt": {"chunks": [{"tokens": prompt, "type": "encoded_text"}]},
            "sampling_session_id": self.id, "seq_id": seq_id, "prompt_logprobs": false,
            "topk_prompt_logprobs": 0, "type": "sample"});
        if !self.trial.shared.older_samples.load(Ordering::Relaxed) {
            body["topk_sample_logprobs"] = json!(0);
            body["prompt_alt_tokens_k"] = json!(0);
            body["record_stability_info"] = json!(false);
        }
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        body
    }

    /// Describes a request for samples.
    pub(crate) fn request(&self, prompt: &[u32], params: Value, more: Value) -> Sent {
        let body = self.body(self.seq_id(), prompt, &params, &more);
        Sent::to(&endpoint::ASAMPLE)
            .json(&body)
            .header(header::SAMPLING_BACKPRESSURE, "1")
    }

    /// Samples.
    pub(crate) async fn sample(
        &self,
        prompt: &[u32],
        params: Value,
        more: Value,
    ) -> Result<SampleOutput, Stop> {
        let sent = self.request(prompt, params, more);
        let promise = self.trial.wire().accepted(&sent).await?.object()?;
        self.output(&promise).await
    }

    /// Waits for the result of a sample.
    pub(crate) async fn output(&self, promise: &Value) -> Result<SampleOutput, Stop> {
        let kind = RequestType::Sample;
        let (content_type, body) = match self.trial.result(promise, kind).await? {
            Answer::Message(body) => (header::PROTOBUF, body),
            Answer::Json(value) => (header::JSON, value.to_string().into()),
            Answer::Failed { error, category } => return Err(failed(kind, &error, &category)),
        };
        decode_result(content_type, body).map_err(|error| {
            Stop::Failed(format!("the result of a sample cannot be read: {error}"))
        })
    }

    /// Samples one sequence.
    pub(crate) async fn one(&self, prompt: &[u32], params: Value) -> Result<SampledSequence, Stop> {
        let mut output = self.sample(prompt, params, json!({})).await?;
        let count = output.sequences.len();
        ensure(count == 1, "one sequence", count)?;
        Ok(output.sequences.remove(0))
    }

    /// Draws the likeliest tokens, and does not stop before `count` of them.
    pub(crate) async fn greedy(&self, prompt: &[u32], count: usize) -> Result<Vec<u32>, Stop> {
        let params = json!({"temperature": 0.0, "max_tokens": count, "stop": []});
        Ok(self.one(prompt, params).await?.tokens)
    }

    /// Returns the log-probability of each token of a text but the first, as the sampler has them.
    pub(crate) async fn score(&self, text: &[u32]) -> Result<Vec<f32>, Stop> {
        let more = json!({"prompt_logprobs": true});
        let output = self.sample(text, json!({"max_tokens": 1}), more).await?;
        let found = output.prompt_logprobs.unwrap_or_default();
        // One that has nothing for the first token is at fault, which `scoring/prompt-logprobs` says.
        if found.len() + 1 == text.len() {
            return Ok(found);
        }
        let expected = format!("{} prompt log-probabilities", text.len());
        ensure(found.len() == text.len(), expected, found.len())?;
        Ok(found[1..].to_vec())
    }
}
