//! `unload_model`: frees a model's weights after what is queued before it.

use tinkrs_wire::op::unload_model::UnloadModelRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::body::read_json;
use crate::error::ApiError;
use crate::worker::Operation;

pub(crate) const UNLOAD_MODEL: OperationKind = OperationKind::new("unload_model", |body, _| {
    read_json::<UnloadModelRequest>(body).map(|request| Box::new(request) as Box<dyn Prepare>)
});

impl Prepare for UnloadModelRequest {
    fn prepare(self: Box<Self>, _: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        Ok(Operation::Unload)
    }
}
