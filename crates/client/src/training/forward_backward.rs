//! Computing a loss and its gradients.
//!
//! A batch is cut into chunks that the server can take, each with a sequence number of its own.
//! The chunks go out at the same time, except the first, which goes last: the server cannot
//! start before it has the lowest number, and when it has, the others are there already.

use super::chunk;
use super::client::Inner;
use super::combine::combine;
use super::json_fallback;
use super::request::{Operation, Request};
use super::sequencer::Submitted;
use crate::connection::errors::SubmitError;
use crate::future::{Pending, report, result_size};
use crate::{Error, TrainingClient, otel};
use std::sync::Arc;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::{Datum, ForwardBackwardOutput, InvalidInput, LossFn};
use tinkrs_wire::op::forward_backward::{ForwardBackwardRequest, decode_result};
use tokio::task::JoinSet;

/// Computes a loss over a batch, with or without gradients.
#[derive(Clone, Debug)]
pub struct ForwardBackward {
    batch: Vec<Datum>,
    loss: LossFn,
    forward_only: bool,
}

impl ForwardBackward {
    #[cfg(feature = "autodiff")]
    pub(super) fn new(batch: Vec<Datum>, loss: LossFn) -> Self {
        Self {
            batch,
            loss,
            forward_only: false,
        }
    }
}

impl TrainingClient {
    /// Computes a loss over `batch` and adds its gradients to those accumulated so far.
    pub fn forward_backward(&self, batch: impl Into<Vec<Datum>>) -> Request<ForwardBackward> {
        let batch = batch.into();
        self.request(ForwardBackward {
            batch,
            loss: LossFn::CrossEntropy,
            forward_only: false,
        })
    }

    /// Computes a loss over `batch` without gradients.
    pub fn forward(&self, batch: impl Into<Vec<Datum>>) -> Request<ForwardBackward> {
        let batch = batch.into();
        self.request(ForwardBackward {
            batch,
            loss: LossFn::CrossEntropy,
            forward_only: true,
        })
    }
}

impl Request<ForwardBackward> {
    /// Sets the loss. The default is [`LossFn::CrossEntropy`].
    pub fn loss(mut self, loss: LossFn) -> Self {
        self.operation.loss = loss;
        self
    }
}

impl Operation for ForwardBackward {
    type Output = ForwardBackwardOutput;

    fn submit(self, client: &TrainingClient) -> Pending<ForwardBackwardOutput> {
        let operation = if self.forward_only {
            "forward"
        } else {
            "forward_backward"
        };
        if let Err(error) = check(&self.batch) {
            return Pending::ready(operation, Err(error.into()));
        }
        let config = &client.inner.session.connection.server.config;
        let chunks = chunk::split(
            self.batch,
            config.fwdbwd_max_chunk_len,
            config.fwdbwd_max_chunk_bytes_count,
        );
        let Ok(slots) = i32::try_from(chunks.len()) else {
            let error =
                InvalidInput::new("batch", format_args!("{} chunks", chunks.len()), "fewer");
            return Pending::ready(operation, Err(error.into()));
        };
        let inner = Arc::clone(&client.inner);
        let pass = Pass {
            operation,
            loss: self.loss,
            forward_only: self.forward_only,
        };
        client
            .inner
            .sequencer
            .enqueue(operation, slots, move |first_seq_id| async move {
                let submitted = submit_chunks(&inner, &pass, chunks, first_seq_id).await?;
                Ok(fetch_chunks(inner, pass, submitted))
            })
    }
}

pub(super) fn check(batch: &[Datum]) -> Result<(), InvalidInput> {
    if batch.is_empty() {
        return Err(InvalidInput::new("batch", "no data", "at least one datum"));
    }
    for (index, datum) in batch.iter().enumerate() {
        if datum.model_input().is_empty() {
            let error = InvalidInput::new("model_input", "no tokens", "at least one");
            return Err(error.at_datum(index));
        }
    }
    Ok(())
}

/// What all chunks of a pass have in common.
#[derive(Clone)]
pub(super) struct Pass {
    pub(super) operation: &'static str,
    pub(super) loss: LossFn,
    pub(super) forward_only: bool,
}

/// Submits chunks; the results are in their order.
///
/// If one is refused, the pass fails, but the server must not be left to wait for a number that
/// never comes. It has seen the numbers that it refused. Of those that were not sent, the last
/// ones are given back, and others go out with a request that changes nothing.
pub(super) async fn submit_chunks(
    inner: &Arc<Inner>,
    pass: &Pass,
    chunks: Vec<Vec<Datum>>,
    first_seq_id: i32,
) -> Result<Vec<Submitted>, Error> {
    let config = &inner.session.connection.server.config;
    let outcomes = if config.parallel_fwdbwd_chunks {
        submit_first_last(inner, pass, chunks, first_seq_id).await
    } else {
        submit_in_turn(inner, pass, chunks, first_seq_id).await
    };
    let sent = |outcome: &ChunkSubmission| match outcome {
        Some(Ok(_)) => true,
        Some(Err(failed)) => failed.sent,
        None => false,
    };
    let used = outcomes.iter().rposition(sent).map_or(0, |last| last + 1);
    inner.sequencer.give_back((outcomes.len() - used) as i32);
    for (seq_id, outcome) in (first_seq_id..).zip(&outcomes[..used]) {
        if !sent(outcome) {
            fill(inner, seq_id).await;
        }
    }
    let outcomes = outcomes.into_iter().flatten();
    outcomes
        .map(|outcome| outcome.map_err(|failed| failed.error))
        .collect()
}

/// How a chunk's submission went; `None` if it was not made, since another had failed.
type ChunkSubmission = Option<Result<Submitted, SubmitError>>;

async fn submit_in_turn(
    inner: &Arc<Inner>,
    pass: &Pass,
    chunks: Vec<Vec<Datum>>,
    first_seq_id: i32,
) -> Vec<ChunkSubmission> {
    let mut outcomes = Vec::with_capacity(chunks.len());
    let mut failed = false;
    for (seq_id, chunk) in (first_seq_id..).zip(chunks) {
        let outcome = if failed {
            None
        } else {
            Some(submit_chunk(inner, pass, chunk, seq_id).await)
        };
        failed |= matches!(outcome, Some(Err(_)));
        outcomes.push(outcome);
    }
    outcomes
}

async fn submit_first_last(
    inner: &Arc<Inner>,
    pass: &Pass,
    mut chunks: Vec<Vec<Datum>>,
    first_seq_id: i32,
) -> Vec<ChunkSubmission> {
    let rest = chunks.split_off(1);
    let mut under_way = JoinSet::new();
    for (index, chunk) in rest.into_iter().enumerate() {
        let (inner, pass) = (Arc::clone(inner), pass.clone());
        let seq_id = first_seq_id + 1 + index as i32;
        let submit = async move { (index, submit_chunk(&inner, &pass, chunk, seq_id).await) };
        under_way.spawn(otel::inherit(submit));
    }
    // All of them end before the turn does, even if one fails: a later operation must not
    // overtake them.
    let mut rest = under_way.join_all().await;
    rest.sort_by_key(|(index, _)| *index);
    let failed = rest.iter().any(|(_, outcome)| outcome.is_err());
    let first = match chunks.pop() {
        Some(chunk) if !failed => Some(submit_chunk(inner, pass, chunk, first_seq_id).await),
        _ => None,
    };
    let rest = rest.into_iter().map(|(_, outcome)| Some(outcome));
    std::iter::once(first).chain(rest).collect()
}

/// Uses a number for a request that changes nothing, and whose result is not fetched.
async fn fill(inner: &Arc<Inner>, seq_id: i32) {
    let nothing = Datum::supervised(vec![0], [0], [0.0]).expect("the lengths are the same");
    let forward = Pass {
        operation: "forward",
        loss: LossFn::CrossEntropy,
        forward_only: true,
    };
    if let Err(failed) = submit_chunk(inner, &forward, vec![nothing], seq_id).await {
        let error = failed.error;
        tracing::warn!(seq_id, %error, "a number is missing: the server may wait for it");
    }
}

async fn submit_chunk(
    inner: &Inner,
    pass: &Pass,
    data: Vec<Datum>,
    seq_id: i32,
) -> Result<Submitted, SubmitError> {
    let connection = &inner.session.connection;
    let size: usize = data.iter().map(chunk::training_bytes).sum();
    let _bytes = connection.server.upload_bytes.take(size as u64).await;
    let request = ForwardBackwardRequest {
        model_id: inner.model_id.clone(),
        seq_id,
        data,
        loss_fn: pass.loss.clone(),
        forward_only: pass.forward_only,
    };
    let submitted = json_fallback::submit(inner, pass.operation, request).await?;
    Ok(Submitted {
        max_result_bytes: result_size::of_pass(size),
        ..submitted
    })
}

pub(super) async fn fetch_chunks(
    inner: Arc<Inner>,
    pass: Pass,
    submitted: Vec<Submitted>,
) -> Result<ForwardBackwardOutput, Error> {
    let request_type = if pass.forward_only {
        RequestType::Forward
    } else {
        RequestType::ForwardBackward
    };
    let mut under_way = JoinSet::new();
    for (index, submitted) in submitted.into_iter().enumerate() {
        let (inner, operation) = (Arc::clone(&inner), pass.operation);
        under_way.spawn(otel::inherit(async move {
            let fetched = inner.fetch(operation, request_type, &submitted).await?;
            let about = fetched.fetched;
            let output = decode_result(&fetched.content_type, fetched.body)
                .map_err(|error| Error::answer(operation, error))
                .inspect_err(|error| {
                    let (connection, id) = (&inner.session.connection, &submitted.request_id);
                    report::unreadable(connection, id, request_type, about, error);
                })?;
            Ok::<_, Error>((index, output))
        }));
    }
    let mut outputs = Vec::with_capacity(under_way.len());
    while let Some(output) = under_way.join_next().await {
        // A task is only lost with the runtime.
        outputs.push(output.map_err(|_| Error::Closed {
            operation: pass.operation,
        })??);
    }
    outputs.sort_by_key(|(index, _)| *index);
    Ok(combine(
        outputs.into_iter().map(|(_, output)| output).collect(),
    ))
}
