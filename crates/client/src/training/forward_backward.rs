//! Computing a loss and its gradients.
//!
//! A batch is cut into chunks that the server can take, each with a sequence number of its own.
//! The chunks go out at the same time, except the first, which goes last: the server cannot
//! start before it has the lowest number, and when it has, the others are there already.

use super::chunk;
use super::client::Inner;
use super::combine::combine;
use super::queue::Submitted;
use super::request::{Operation, Request};
use crate::connection::call::{Call, Payload};
use crate::connection::transport::Pool;
use crate::future::Pending;
use crate::{Error, TrainingClient};
use http::Method;
use std::sync::Arc;
use tinkrs_types::{Datum, ForwardBackwardOutput, InvalidInput, LossFn, RequestType};
use tinkrs_wire::op::forward_backward::{ForwardBackwardRequest, decode_result};
use tinkrs_wire::{compress, route};
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
        let config = &client.inner.session.connection.config;
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
            .queue
            .submit(operation, slots, move |first_seq_id| async move {
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
pub(super) async fn submit_chunks(
    inner: &Arc<Inner>,
    pass: &Pass,
    mut chunks: Vec<Vec<Datum>>,
    first_seq_id: i32,
) -> Result<Vec<Submitted>, Error> {
    inner.session.connection.check_open(pass.operation)?;
    let mut submitted = Vec::with_capacity(chunks.len());
    if !inner.session.connection.config.parallel_fwdbwd_chunks {
        for (seq_id, chunk) in (first_seq_id..).zip(chunks) {
            submitted.push(submit_chunk(inner, pass, chunk, seq_id).await?);
        }
        return Ok(submitted);
    }
    let rest = chunks.split_off(1);
    let mut under_way = JoinSet::new();
    for (index, chunk) in rest.into_iter().enumerate() {
        let (inner, pass) = (Arc::clone(inner), pass.clone());
        let seq_id = first_seq_id + 1 + index as i32;
        under_way.spawn(async move { (index, submit_chunk(&inner, &pass, chunk, seq_id).await) });
    }
    // All of them end before the turn does, even if one fails: a later operation must not
    // overtake them.
    let mut rest = under_way.join_all().await;
    rest.sort_by_key(|(index, _)| *index);
    let rest: Vec<Submitted> = rest
        .into_iter()
        .map(|(_, result)| result)
        .collect::<Result<_, _>>()?;
    for first in chunks {
        submitted.push(submit_chunk(inner, pass, first, first_seq_id).await?);
    }
    submitted.extend(rest);
    Ok(submitted)
}

async fn submit_chunk(
    inner: &Inner,
    pass: &Pass,
    data: Vec<Datum>,
    seq_id: i32,
) -> Result<Submitted, Error> {
    let connection = &inner.session.connection;
    let size: usize = data.iter().map(chunk::training_bytes).sum();
    let _bytes = connection.upload_bytes.take(size as u64).await;
    let request = ForwardBackwardRequest {
        model_id: inner.model_id.clone(),
        seq_id,
        data,
        loss_fn: pass.loss.clone(),
        forward_only: pass.forward_only,
    };
    let zstd = connection.config.proto_compress_fwdbwd;
    let mut body = request.encode()?;
    if zstd {
        body = compress::compress(&body);
    }
    let mut call = Call::new(pass.operation, Method::POST, route::FORWARD_BACKWARD);
    call.payload = Payload::Message {
        body: body.into(),
        zstd,
    };
    call.pool = Pool::Upload;
    inner.promise(call).await
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
        under_way.spawn(async move {
            let fetched = inner.fetch(operation, request_type, &submitted).await?;
            let output = decode_result(&fetched.content_type, fetched.body)
                .map_err(|error| Error::answer(operation, error))?;
            Ok::<_, Error>((index, output))
        });
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
