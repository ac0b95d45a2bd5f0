//! Passes and optimizer steps.
//!
//! What is wrong with their data is their result, not a refusal: see [`queue`](crate::operations::queue). What they
//! are is in [`operations`](crate::operations).

use axum::extract::State;
use bytes::Bytes;
use tinkrs_types::protocol::Promise;
use tinkrs_wire::op::forward_backward::Address;

use super::Plain;
use crate::Server;
use crate::error::ApiError;
use crate::extract::{Caller, Json};
use crate::intake::Upload;
use crate::operations::forward_backward::{FORWARD, FORWARD_BACKWARD, FORWARD_BACKWARD_JSON};
use crate::operations::optim_step::OPTIM_STEP;
use crate::operations::queue::ReadAddress;

pub(crate) async fn forward_backward(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Upload,
) -> Result<Plain<Promise>, ApiError> {
    let (kind, address): (_, ReadAddress) = if body.is_message {
        (&FORWARD_BACKWARD, |bytes: &Bytes| {
            Address::of_message(bytes.clone())
        })
    } else {
        (&FORWARD_BACKWARD_JSON, |bytes: &Bytes| {
            Address::of_json(bytes)
        })
    };
    let promise = server.submit_upload(owner, kind, address, body);
    promise.await.map(Plain)
}

/// A pass without gradients, as older clients ask for it.
pub(crate) async fn forward(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Upload,
) -> Result<Plain<Promise>, ApiError> {
    let address = |bytes: &Bytes| Address::of_json(bytes);
    let promise = server.submit_upload(owner, &FORWARD, address, body);
    promise.await.map(Plain)
}

pub(crate) async fn optim_step(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Json,
) -> Result<Plain<Promise>, ApiError> {
    let address = body.address(&OPTIM_STEP, server.shared().room(owner))?;
    let promise = server.submit(owner, &OPTIM_STEP, &address, body.0);
    promise.await.map(Plain)
}
