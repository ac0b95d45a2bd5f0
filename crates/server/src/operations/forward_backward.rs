//! `forward_backward` and `forward`: a loss over a batch, with or without its gradients.

use bytes::Bytes;
use tinkrs_backend::Objective;
use tinkrs_types::{Datum, InvalidInput, LossFn};
use tinkrs_wire::op::forward;
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::body::read_json_with;
use crate::error::ApiError;
use crate::waiting::{Room, Waiting};
use crate::worker::{DecodePass, Operation, PassSize, WaitingPass};

/// As a protobuf message.
pub(crate) const FORWARD_BACKWARD: OperationKind =
    OperationKind::new("forward_backward", |body, room| {
        let decode = |body: &Bytes| Ok(ForwardBackwardRequest::decode(body.clone())?);
        NewPass::read(decode, body, room)
    });

/// As the JSON of clients to 0.24.
pub(crate) const FORWARD_BACKWARD_JSON: OperationKind =
    OperationKind::new("forward_backward_json", |body, room| {
        let decode = |body: &Bytes| read_json_with(body, ForwardBackwardRequest::decode_json);
        NewPass::read(decode, body, room)
    });

/// Without gradients, as the JSON of clients to 0.24.
pub(crate) const FORWARD: OperationKind = OperationKind::new("forward", |body, room| {
    let decode = |body: &Bytes| read_json_with(body, forward::decode);
    NewPass::read(decode, body, room)
});

/// A pass as it was read.
#[derive(Debug)]
struct NewPass {
    loss_fn: LossFn,
    backward: bool,
    size: PassSize,
    data: Waiting<Vec<Datum>>,
    decode: DecodePass,
}

impl NewPass {
    fn read(
        decode: DecodePass,
        body: &Bytes,
        room: Room<'_>,
    ) -> Result<Box<dyn Prepare>, ApiError> {
        let ForwardBackwardRequest {
            data,
            loss_fn,
            forward_only,
            ..
        } = decode(body)?;
        if data.is_empty() {
            return Err(InvalidInput::new("data", "no datums", "at least one").into());
        }
        let size = PassSize::of(&data, body);
        Ok(Box::new(Self {
            loss_fn,
            backward: !forward_only,
            data: Waiting::new(data, size.data_bytes, room),
            size,
            decode,
        }))
    }
}

impl Prepare for NewPass {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        let objective = match self.loss_fn {
            LossFn::Custom { loss_id } => {
                Objective::Custom(model.server.loss(model.owner, &loss_id)?)
            }
            // A backend refuses those that it does not have.
            built_in => Objective::BuiltIn(built_in),
        };
        Ok(Operation::Pass(WaitingPass {
            objective,
            backward: self.backward,
            size: self.size,
            data: self.data,
            digest: model.digest,
            decode: self.decode,
        }))
    }
}
