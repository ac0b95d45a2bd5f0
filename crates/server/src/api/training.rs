//! Passes and optimizer steps.
//!
//! What is wrong with their data is their result, not a refusal: see [`queue`](crate::queue).

use axum::extract::State;
use tinkrs_types::{InvalidInput, LossFn, OptimizerParams, Promise};
use tinkrs_wire::DecodeError;
use tinkrs_wire::op::forward;
use tinkrs_wire::op::forward_backward::{Address, ForwardBackwardRequest};
use tinkrs_wire::op::optim_step::OptimStepRequest;

use super::Plain;
use crate::Server;
use crate::error::Refusal;
use crate::extract::{Numbered, Raw};
use crate::unknown;
use crate::worker::Operation;

pub(crate) async fn forward_backward(
    State(server): State<Server>,
    body: Raw,
) -> Result<Plain<Promise>, Refusal> {
    let (address, request) = if body.is_message {
        let address = Address::of_message(body.bytes.clone())?;
        let request = ForwardBackwardRequest::decode(body.bytes);
        (address, request.map_err(Refusal::from))
    } else {
        let read = ForwardBackwardRequest::decode_json;
        (Address::of_json(&body.bytes)?, decode_json(&body, read))
    };
    server.pass(&address, request).map(Plain)
}

/// A pass without gradients, as older clients ask for it.
pub(crate) async fn forward(
    State(server): State<Server>,
    body: Raw,
) -> Result<Plain<Promise>, Refusal> {
    let address = Address::of_json(&body.bytes)?;
    let request = decode_json(&body, forward::decode);
    server.pass(&address, request).map(Plain)
}

pub(crate) async fn optim_step(
    State(server): State<Server>,
    Numbered { address, request }: Numbered<OptimStepRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server.optim_step(&address, request).map(Plain)
}

impl Server {
    fn pass(
        &self,
        address: &Address,
        request: Result<ForwardBackwardRequest, Refusal>,
    ) -> Result<Promise, Refusal> {
        self.submit(address, |_| {
            let request = request?;
            if request.data.is_empty() {
                return Err(InvalidInput::new("data", "no datums", "at least one").into());
            }
            if !is_supported(&request.loss_fn) {
                return Err(InvalidInput::new(
                    "loss_fn",
                    request.loss_fn.name(),
                    "cross_entropy, importance_sampling, ppo, cispo, dro or gspo",
                )
                .into());
            }
            Ok(Operation::Pass {
                data: request.data,
                loss: request.loss_fn,
                forward_only: request.forward_only,
            })
        })
    }

    fn optim_step(
        &self,
        address: &Address,
        request: Result<OptimStepRequest, Refusal>,
    ) -> Result<Promise, Refusal> {
        self.submit(address, |_| {
            let request = request?;
            request.params.check()?;
            match request.params {
                OptimizerParams::Adam(params) => Ok(Operation::OptimStep(params)),
                OptimizerParams::Dimuon(_) => Err(wrong_optimizer("dimuon")),
                OptimizerParams::Other(other) => Err(wrong_optimizer(&other.kind)),
                _ => Err(wrong_optimizer("another optimizer")),
            }
        })
    }
}

/// Reads the JSON of an older client, and makes sure that nothing in it goes unread.
fn decode_json(
    body: &Raw,
    read: impl FnOnce(&[u8]) -> Result<ForwardBackwardRequest, DecodeError>,
) -> Result<ForwardBackwardRequest, Refusal> {
    let request = read(&body.bytes)?;
    let sent = serde_json::from_slice(&body.bytes).unwrap_or_default();
    match unknown::pass_member(&sent) {
        None => Ok(request),
        Some(name) => Err(Refusal::unknown(&name)),
    }
}

fn is_supported(loss: &LossFn) -> bool {
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

fn wrong_optimizer(found: &str) -> Refusal {
    InvalidInput::new(
        "optimizer_params.type",
        found,
        "adamw, the optimizer of this model",
    )
    .into()
}
