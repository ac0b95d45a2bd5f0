//! `create_model`: the first operation of each run, with sequence id 0.

use tinkrs_wire::op::create_model::CreateModelRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::body::read_json;
use crate::error::ApiError;
use crate::worker::Operation;

pub(crate) const CREATE_MODEL: OperationKind = OperationKind::new("create_model", |body, _| {
    read_json::<CreateModelRequest>(body).map(|request| Box::new(request) as Box<dyn Prepare>)
});

impl Prepare for CreateModelRequest {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        // With the seed that was drawn when it was accepted.
        let run = model.registry.run(model.owner, model.model_id)?;
        Ok(Operation::Create {
            lora: run.record.lora.clone(),
            optimizer: run.record.optimizer.clone(),
        })
    }
}
