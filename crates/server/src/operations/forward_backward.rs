//! `forward_backward` and `forward`: a loss over a batch, with or without its gradients.

use bytes::Bytes;
use tinkrs_backend::{Objective, PassRequest};
use tinkrs_types::{InvalidInput, LossFn};
use tinkrs_wire::op::forward;
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::body::read_json_with;
use crate::error::ApiError;
use crate::worker::Operation;

/// As a protobuf message.
pub(crate) const FORWARD_BACKWARD: OperationKind =
    OperationKind::new("forward_backward", |body: &Bytes| {
        let request = ForwardBackwardRequest::decode(body.clone())?;
        Ok(Box::new(request))
    });

/// As the JSON of clients to 0.24.
pub(crate) const FORWARD_BACKWARD_JSON: OperationKind =
    OperationKind::new("forward_backward_json", |body| {
        let request = read_json_with(body, ForwardBackwardRequest::decode_json)?;
        Ok(Box::new(request))
    });

/// Without gradients, as the JSON of clients to 0.24.
pub(crate) const FORWARD: OperationKind = OperationKind::new("forward", |body| {
    let request = read_json_with(body, forward::decode)?;
    Ok(Box::new(request))
});

impl Prepare for ForwardBackwardRequest {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        if self.data.is_empty() {
            return Err(InvalidInput::new("data", "no datums", "at least one").into());
        }
        let objective = match self.loss_fn {
            LossFn::Custom { loss_id } => {
                Objective::Custom(model.server.loss(model.owner, &loss_id)?)
            }
            // A backend refuses those that it does not have.
            built_in => Objective::BuiltIn(built_in),
        };
        Ok(Operation::Pass(PassRequest {
            data: self.data,
            objective,
            backward: !self.forward_only,
        }))
    }
}
