//! Passes and optimizer steps.
//!
//! What is wrong with their data is their result, not a refusal: see [`queue`](crate::operations::queue). What they
//! are is in [`operations`](crate::operations).

use axum::extract::State;
use tinkrs_types::protocol::Promise;
use tinkrs_wire::op::forward_backward::Address;

use super::Plain;
use crate::Server;
use crate::error::ApiError;
use crate::extract::{Caller, Json, Raw};
use crate::operations::forward_backward::{FORWARD, FORWARD_BACKWARD, FORWARD_BACKWARD_JSON};
use crate::operations::optim_step::OPTIM_STEP;

pub(crate) async fn forward_backward(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Raw,
) -> Result<Plain<Promise>, ApiError> {
    let (kind, address) = if body.is_message {
        let address = Address::of_message(body.bytes.clone())?;
        (&FORWARD_BACKWARD, address)
    } else {
        (&FORWARD_BACKWARD_JSON, Address::of_json(&body.bytes)?)
    };
    let promise = server.submit(owner, kind, &address, body.bytes).await?;
    Ok(Plain(promise))
}

/// A pass without gradients, as older clients ask for it.
pub(crate) async fn forward(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Raw,
) -> Result<Plain<Promise>, ApiError> {
    let address = Address::of_json(&body.bytes)?;
    let promise = server.submit(owner, &FORWARD, &address, body.bytes);
    promise.await.map(Plain)
}

pub(crate) async fn optim_step(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Json,
) -> Result<Plain<Promise>, ApiError> {
    let address = body.address(&OPTIM_STEP)?;
    let promise = server.submit(owner, &OPTIM_STEP, &address, body.0);
    promise.await.map(Plain)
}
