//! Passes and optimizer steps.
//!
//! What is wrong with their data is their result, not a refusal: see [`queue`](crate::queue).

use axum::extract::State;
use tinkrs_types::protocol::Promise;
use tinkrs_types::training::OptimizerParams;
use tinkrs_types::{InvalidInput, LossFn};
use tinkrs_wire::op::forward_backward::{Address, ForwardBackwardRequest};
use tinkrs_wire::op::optim_step::OptimStepRequest;

use super::Plain;
use crate::Server;
use crate::auth::Owner;
use crate::error::ApiError;
use crate::extract::{Caller, Json, Raw};
use crate::request::Kind;
use crate::worker::{Loss, Operation};

pub(crate) async fn forward_backward(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Raw,
) -> Result<Plain<Promise>, ApiError> {
    let (kind, address) = match body.is_message {
        true => (Kind::Pass, Address::of_message(body.bytes.clone())?),
        false => (Kind::PassJson, Address::of_json(&body.bytes)?),
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
    let promise = server
        .submit(owner, Kind::Forward, &address, body.bytes)
        .await?;
    Ok(Plain(promise))
}

pub(crate) async fn optim_step(
    State(server): State<Server>,
    Caller(owner): Caller,
    body: Json,
) -> Result<Plain<Promise>, ApiError> {
    let address = body.address(Kind::OptimStep)?;
    let promise = server
        .submit(owner, Kind::OptimStep, &address, body.0)
        .await?;
    Ok(Plain(promise))
}

pub(crate) fn prepare_pass(
    request: ForwardBackwardRequest,
    server: &Server,
    owner: Owner,
) -> Result<Operation, ApiError> {
    if request.data.is_empty() {
        return Err(InvalidInput::new("data", "no datums", "at least one").into());
    }
    let loss = match request.loss_fn {
        LossFn::Custom { loss_id } => Loss::Uploaded(server.loss(owner, &loss_id)?),
        loss if is_built_in(&loss) => Loss::BuiltIn(loss),
        other => {
            return Err(InvalidInput::new(
                "loss_fn",
                other.name(),
                "cross_entropy, importance_sampling, ppo, cispo, dro, gspo or custom",
            )
            .into());
        }
    };
    Ok(Operation::Pass {
        data: request.data,
        loss,
        forward_only: request.forward_only,
    })
}

pub(crate) fn prepare_step(request: &OptimStepRequest) -> Result<Operation, ApiError> {
    request.params.check()?;
    match &request.params {
        OptimizerParams::Adam(params) => Ok(Operation::OptimStep(*params)),
        OptimizerParams::Dimuon(_) => Err(wrong_optimizer("dimuon")),
        OptimizerParams::Other(other) => Err(wrong_optimizer(&other.kind)),
        _ => Err(wrong_optimizer("another optimizer")),
    }
}

fn is_built_in(loss: &LossFn) -> bool {
    match loss {
        LossFn::CrossEntropy
        | LossFn::ImportanceSampling
        | LossFn::Ppo(_)
        | LossFn::Cispo(_)
        | LossFn::Dro { .. }
        | LossFn::Gspo(_) => true,
        LossFn::StableReinforce { .. } | LossFn::Custom { .. } | LossFn::Other { .. } => false,
        _ => false,
    }
}

fn wrong_optimizer(found: &str) -> ApiError {
    InvalidInput::new(
        "optimizer_params.type",
        found,
        "adamw, the optimizer of this model",
    )
    .into()
}
