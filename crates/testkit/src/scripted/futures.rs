//! Promises and their results.

use super::gate::Gate;
use super::reply::{Reply, refuse};
use super::script::Effect;
use super::{Recorded, Shared, State};
use bytes::Bytes;
use serde_json::Value;
use std::sync::Arc;
use tinkrs_types::protocol::{Completion, FailedRequest, Promise, QueueStatus, SAMPLE_SEQ_BLOCK};
use tinkrs_types::service::QueueState;
use tinkrs_types::{RequestId, SamplingSessionId};
use tinkrs_wire::Body;
use tinkrs_wire::op::cancel_future::CancelFutureRequest;
use tinkrs_wire::op::retrieve_future::{RetrieveFutureRequest, encode_metadata, encode_try_again};
use tinkrs_wire::op::retrieve_futures::{
    FuturesTarget, RetrieveFuturesRequest, RetrieveFuturesResponse,
};
use tokio::sync::watch;

/// What became of a request.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// A result that is JSON.
    Json(Value),
    /// A result that is a message, or JSON for who does not take messages.
    Message(Bytes, Value),
    /// A failure.
    Failed(FailedRequest),
}

/// A request whose result can be asked for.
#[derive(Debug)]
pub(super) struct Promised {
    outcome: watch::Sender<Option<Outcome>>,
    /// The sampler to tell, and which clone of it.
    listener: Option<(SamplingSessionId, u64)>,
}

impl State {
    /// Promises a result.
    pub(super) fn promise(&mut self, listener: Option<(SamplingSessionId, u64)>) -> RequestId {
        let request_id = RequestId::new(format!("request-{}", self.next("request")));
        let promised = Promised {
            outcome: watch::Sender::new(None),
            listener: listener.map(|(sampler, seq_id)| (sampler, seq_id / SAMPLE_SEQ_BLOCK)),
        };
        self.futures.insert(request_id.clone(), Arc::new(promised));
        request_id
    }

    /// Makes a result available.
    fn complete(&mut self, request_id: &RequestId, outcome: Outcome) {
        let Some(promised) = self.futures.get(request_id).cloned() else {
            return;
        };
        if let Some((sampler, clone)) = &promised.listener
            && let Some(sampler) = self.samplers.get_mut(sampler)
        {
            let request_id = request_id.clone();
            sampler.announce(
                *clone,
                match &outcome {
                    Outcome::Failed(_) => Completion::Failed { request_id },
                    Outcome::Json(_) => Completion::Finished {
                        request_id,
                        response_payload_uncompressed_size: None,
                    },
                    Outcome::Message(message, _) => Completion::Finished {
                        request_id,
                        response_payload_uncompressed_size: Some(message.len() as u64),
                    },
                },
            );
        }
        promised.outcome.send_replace(Some(outcome));
    }

    /// Makes a result available, as far as the script has nothing against it.
    pub(super) fn settle(
        &mut self,
        shared: &Arc<Shared>,
        request_id: &RequestId,
        outcome: Outcome,
        effect: Option<Effect>,
    ) {
        match effect {
            Some(Effect::HoldResult(gate)) => hold(shared, gate, request_id.clone(), outcome),
            Some(Effect::FailResult(failure)) => {
                self.complete(request_id, Outcome::Failed(failure));
            }
            _ => self.complete(request_id, outcome),
        }
    }
}

fn hold(shared: &Arc<Shared>, gate: Gate, request_id: RequestId, outcome: Outcome) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        tokio::select! {
            () = gate.passed() => shared.state().complete(&request_id, outcome),
            () = shared.stopped() => {}
        }
    });
}

/// Answers with a promise.
pub(super) fn promise(request_id: RequestId) -> Reply {
    Reply::json(&Promise {
        request_id,
        model_id: None,
        sample_sequence_ids: None,
    })
}

/// `retrieve_future`
pub(super) async fn retrieve_future(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = RetrieveFutureRequest::decode(&request.body) else {
        return refuse(400, "not a request for a result");
    };
    let (promised, long_poll, inline_limit_bytes, json_results) = {
        let state = shared.state();
        let promised = state.futures.get(&body.request_id).cloned();
        (
            promised,
            state.long_poll,
            state.inline_limit_bytes,
            state.json_results,
        )
    };
    let Some(promised) = promised else {
        return refuse(404, "no such request");
    };
    let mut outcomes = promised.outcome.subscribe();
    let done = outcomes.wait_for(Option::is_some);
    let Ok(Ok(outcome)) = tokio::time::timeout(long_poll, done).await else {
        let status = QueueStatus {
            state: QueueState::Active,
            reason: None,
        };
        let mut reply = Reply::json(&encode_try_again(&body.request_id, &status));
        reply.status = 408;
        return reply;
    };
    let accepts_messages = request
        .header("accept")
        .is_some_and(|accept| accept.contains(tinkrs_wire::header::PROTOBUF));
    let reply = match outcome.clone().expect("it was waited for") {
        Outcome::Failed(failure) => return Reply::json(&failure),
        Outcome::Json(result) => Reply::json(&result),
        Outcome::Message(message, _) if accepts_messages && !json_results => {
            Reply::message(message)
        }
        Outcome::Message(_, result) => Reply::json(&result),
    };
    if body.allow_metadata_only && reply.body.len() > inline_limit_bytes {
        return Reply::json(&encode_metadata(reply.body.len() as u64));
    }
    reply
}

/// `retrieve_futures`
pub(super) async fn retrieve_futures(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = RetrieveFuturesRequest::decode(&request.body) else {
        return refuse(400, "not a request for completions");
    };
    let FuturesTarget::SamplingSession {
        sampling_session_id,
        cloned_sampler_id,
    } = body.target;
    let (mut news, long_poll) = {
        let mut state = shared.state();
        let state = &mut *state;
        let Some(sampler) = state.samplers.get_mut(&sampling_session_id) else {
            return refuse(404, "no such sampling session");
        };
        state.acknowledged.extend(body.retrieved_request_ids);
        (sampler.news(cloned_sampler_id), state.long_poll)
    };
    let seen = usize::try_from(body.prev_cursor).unwrap_or(usize::MAX);
    let more = news.wait_for(|completions| completions.len() > seen);
    let completions = match tokio::time::timeout(long_poll, more).await {
        Ok(Ok(completions)) => completions[seen..].to_vec(),
        _ => vec![],
    };
    Reply::json(&RetrieveFuturesResponse {
        cursor: body.prev_cursor + completions.len() as u64,
        completions,
    })
}

/// `cancel_future`
pub(super) fn cancel_future(shared: &Shared, request: &Recorded) -> Reply {
    let Ok(body) = CancelFutureRequest::decode(&request.body) else {
        return refuse(400, "not a request to cancel");
    };
    shared.state().cancelled.push(body.request_id);
    Reply::json(&serde_json::json!({}))
}
