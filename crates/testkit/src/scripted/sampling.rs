//! Sampling sessions and samples.

use super::futures::Outcome;
use super::reply::{Reply, refuse};
use super::script::Effect;
use super::{Recorded, Shared};
use crate::arithmetic::{logprob, sampled_tokens};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tinkrs_types::protocol::{Completion, Promise};
use tinkrs_types::rest::SamplerInfo;
use tinkrs_types::sampling::{
    PromptAltTokens, SampledSequence, StopReason, TOPK_FILLER_LOGPROB, TopkLogprobs,
};
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::{
    InvalidInput, RequestId, SampleOutput, SamplingSessionId, SequenceId, TensorData, TinkerPath,
};
use tinkrs_wire::Body;
use tinkrs_wire::op::asample::{SampleRequest, encode_json_result, encode_result};
use tinkrs_wire::op::create_sampling_session::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse,
};
use tinkrs_wire::op::join_sampling_session::{
    JoinSamplingSessionRequest, JoinSamplingSessionResponse,
};
use tokio::sync::watch;

/// A sampling session.
#[derive(Debug)]
pub(super) struct Sampler {
    pub(super) base_model: String,
    pub(super) model_path: Option<TinkerPath>,
    clients: u64,
    promised: HashMap<u64, (Promise, Bytes)>,
    completions: BTreeMap<u64, watch::Sender<Vec<Completion>>>,
}

impl Sampler {
    pub(super) fn new(base_model: String, model_path: Option<TinkerPath>) -> Self {
        Self {
            base_model,
            model_path,
            clients: 0,
            promised: HashMap::new(),
            completions: BTreeMap::new(),
        }
    }

    /// Tells the client with this number of a completion.
    pub(super) fn announce(&mut self, client: u64, completion: Completion) {
        let completions = self.completions.entry(client).or_default();
        completions.send_modify(|completions| completions.push(completion));
    }

    /// Returns all completions of the client with this number, and those to come.
    pub(super) fn news(&mut self, client: u64) -> watch::Receiver<Vec<Completion>> {
        self.completions.entry(client).or_default().subscribe()
    }
}

/// `create_sampling_session`
pub(super) fn create_sampling_session(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = CreateSamplingSessionRequest::decode(&request.body) else {
        return refuse(400, "not a request for a sampling session");
    };
    let mut state = shared.state();
    if let Err(reply) = state.check_session(&body.session_id) {
        return reply;
    }
    let sampler = match (body.base_model, body.model_path) {
        (Some(base_model), None) => Sampler::new(base_model, None),
        (None, Some(path)) => match state.base_model_of(&path) {
            Ok((base_model, path)) => Sampler::new(base_model, Some(path)),
            Err(reply) => return reply,
        },
        _ => return refuse(400, "exactly one of base_model and model_path is needed"),
    };
    let id = SamplingSessionId::in_session(&body.session_id, body.sampling_session_seq_id);
    state.samplers.entry(id.clone()).or_insert(sampler);
    Reply::json(&CreateSamplingSessionResponse {
        sampling_session_id: id,
    })
}

/// `join_sampling_session`
pub(super) fn join_sampling_session(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = JoinSamplingSessionRequest::decode(&request.body) else {
        return refuse(400, "not a request to join");
    };
    let mut state = shared.state();
    let Some(sampler) = state.samplers.get_mut(&body.sampling_session_id) else {
        return refuse(404, "no such sampling session");
    };
    sampler.clients += 1;
    Reply::json(&JoinSamplingSessionResponse {
        client_counter: sampler.clients,
    })
}

/// `sampler`
pub(super) fn sampler(shared: &Shared, request: &Recorded) -> Reply {
    let id = SamplingSessionId::new(request.ids[0].clone());
    match shared.state().samplers.get(&id) {
        Some(sampler) => Reply::json(&SamplerInfo::new(
            id,
            sampler.base_model.clone(),
            sampler.model_path.clone(),
        )),
        None => refuse(404, "no such sampler"),
    }
}

/// `asample`
pub(super) fn asample(shared: &Arc<Shared>, request: &Recorded, effect: Option<Effect>) -> Reply {
    let body = match SampleRequest::decode(&request.body) {
        Ok(body) => body,
        Err(error) => {
            shared.complain(format!("asample: {error:?}"));
            return refuse(400, "not a request for samples");
        }
    };
    let (Some(session), Some(seq_id)) = (body.sampling_session_id.clone(), body.seq_id) else {
        return refuse(400, "sampling_session_id and seq_id are required");
    };
    let mut state = shared.state();
    if let Some((owner, _)) = session.session()
        && let Err(reply) = state.check_session(&owner)
    {
        return reply;
    }
    let Some(sampler) = state.samplers.get(&session) else {
        return refuse(404, "no such sampling session");
    };
    if let Some((promise, before)) = sampler.promised.get(&seq_id) {
        if *before != request.body {
            shared.complain(format!("two different samples numbered {seq_id}"));
            return refuse(409, "another sample has this seq_id");
        }
        return Reply::json(promise);
    }
    let request_id: RequestId = state.promise(Some((session.clone(), seq_id)));
    let ids = (0..body.num_samples)
        .map(|_| SequenceId::new(format!("sequence-{}", state.next("sequence"))))
        .collect();
    let promise = Promise {
        request_id: request_id.clone(),
        model_id: None,
        sample_sequence_ids: state.sequence_ids.then_some(ids),
    };
    let sampler = state.samplers.get_mut(&session).expect("it was found");
    sampler
        .promised
        .insert(seq_id, (promise.clone(), request.body.clone()));
    let outcome = match sample(&body) {
        Ok(output) => {
            let json = encode_json_result(&output);
            Outcome::Message(encode_result(output).into(), json)
        }
        Err(error) => Outcome::Failed(super::training::user_error(&error)),
    };
    state.settle(shared, &request_id, outcome, effect);
    Reply::json(&promise)
}

/// Samples, as far as tests can tell.
fn sample(request: &SampleRequest) -> Result<SampleOutput, InvalidInput> {
    let prompt = request.prompt.to_tokens().unwrap_or_default();
    let max_tokens = request.sampling_params.max_tokens.unwrap_or(16);
    let mut output = SampleOutput::default();
    for index in 0..request.num_samples {
        let tokens = sampled_tokens(&prompt, index, max_tokens);
        let mut sequence = SampledSequence::new(tokens, StopReason::Length);
        let logprobs = sequence.tokens.iter().map(|token| logprob((*token).into()));
        sequence.logprobs = Some(logprobs.collect());
        let k = request.topk_sample_logprobs as usize;
        sequence.topk_logprobs = topk(k, sequence.tokens.len(), 0)?;
        output.sequences.push(sequence);
    }
    // Positions before this one are not scored; the first never is.
    let first = match request.prompt_logprobs_last_n {
        Some(last) => prompt.len().saturating_sub(last as usize).max(1),
        None => 1,
    };
    if request.prompt_logprobs == Some(true) {
        let score = |(position, token): (usize, &u32)| {
            if position < first {
                f32::NAN
            } else {
                logprob((*token).into())
            }
        };
        output.prompt_logprobs = Some(prompt.iter().enumerate().map(score).collect());
    }
    let k = request.topk_prompt_logprobs as usize;
    output.topk_prompt_logprobs = topk(k, prompt.len(), first)?;
    if let Some(targets) = &request.target_prompt_logprobs {
        output.target_prompt_logprobs = Some(score_targets(targets)?);
    }
    let k = request.prompt_alt_tokens_k as usize;
    if k > 0 {
        let rows = prompt.len().saturating_sub(1);
        let tokens: Vec<i64> = (0..rows * k).map(|cell| (cell % k) as i64).collect();
        let logprobs: Vec<f32> = tokens.iter().map(|token| logprob(*token)).collect();
        output.prompt_alt_tokens = Some(PromptAltTokens::new(
            TensorData::with_shape(tokens, [rows, k])?,
            TensorData::with_shape(logprobs, [rows, k])?,
        ));
    }
    Ok(output)
}

/// The likeliest tokens are 0, 1, 2 and so on everywhere, but unknown before `first`.
fn topk(k: usize, length: usize, first: usize) -> Result<Option<TopkLogprobs>, InvalidInput> {
    if k == 0 || length == 0 {
        return Ok(None);
    }
    let cells = (0..length).flat_map(|position| (0..k).map(move |rank| (position, rank)));
    let cell = |(position, rank): (usize, usize)| {
        if position < first {
            (0, TOPK_FILLER_LOGPROB)
        } else {
            (rank as u32, logprob(rank as i64))
        }
    };
    let (tokens, logprobs) = cells.map(cell).unzip();
    TopkLogprobs::new(k, tokens, logprobs).map(Some)
}

fn score_targets(targets: &TensorData) -> Result<TensorData, InvalidInput> {
    let TensorValues::I64(tokens) = targets.values() else {
        return Err(InvalidInput::new(
            "target_prompt_logprobs",
            "float32",
            "int64",
        ));
    };
    let score = |token: &i64| if *token < 0 { 0.0 } else { logprob(*token) };
    let scores: Vec<f32> = tokens.iter().map(score).collect();
    let shape = targets.shape().unwrap_or_default().to_vec();
    match targets.csr() {
        Some(csr) => TensorData::sparse(scores, csr.clone(), [shape[0], shape[1]]),
        None => TensorData::with_shape(scores, shape),
    }
}
