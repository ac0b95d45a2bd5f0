//! Passes and optimizer steps.

use axum::extract::State;
use tinkrs_types::{InvalidInput, LossFn, ModelId, OptimizerParams, Promise};
use tinkrs_wire::DecodeError;
use tinkrs_wire::op::forward;
use tinkrs_wire::op::forward_backward::{Address, ForwardBackwardRequest};
use tinkrs_wire::op::optim_step::OptimStepRequest;

use super::Plain;
use crate::Server;
use crate::error::Refusal;
use crate::extract::{Decoded, Raw};
use crate::worker::Operation;

pub(crate) async fn forward_backward(
    State(server): State<Server>,
    body: Raw,
) -> Result<Plain<Promise>, Refusal> {
    let (address, request) = if body.is_message {
        let address = Address::of_message(body.bytes.clone())?;
        (address, ForwardBackwardRequest::decode(body.bytes))
    } else {
        let address = Address::of_json(&body.bytes)?;
        (address, ForwardBackwardRequest::decode_json(&body.bytes))
    };
    server.pass(address, request).map(Plain)
}

/// A pass without gradients, as older clients ask for it.
pub(crate) async fn forward(
    State(server): State<Server>,
    body: Raw,
) -> Result<Plain<Promise>, Refusal> {
    let address = Address::of_json(&body.bytes)?;
    server
        .pass(address, forward::decode(&body.bytes))
        .map(Plain)
}

pub(crate) async fn optim_step(
    State(server): State<Server>,
    Decoded(request): Decoded<OptimStepRequest>,
) -> Result<Plain<Promise>, Refusal> {
    server.optim_step(request).map(Plain)
}

impl Server {
    /// Queues a pass. What is wrong with its data is its result, not a refusal: see
    /// [`queue`](crate::queue).
    fn pass(
        &self,
        address: Address,
        request: Result<ForwardBackwardRequest, DecodeError>,
    ) -> Result<Promise, Refusal> {
        let seq_id = Some(i64::from(address.seq_id)).filter(|number| *number != 0);
        self.submit(&ModelId::new(address.model_id), seq_id, |_| {
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

    fn optim_step(&self, request: OptimStepRequest) -> Result<Promise, Refusal> {
        self.submit(&request.model_id, request.seq_id, |_| {
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
