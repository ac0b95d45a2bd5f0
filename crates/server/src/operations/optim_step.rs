//! `optim_step`: applies the accumulated gradients.

use tinkrs_types::InvalidInput;
use tinkrs_types::training::OptimizerParams;
use tinkrs_wire::op::optim_step::OptimStepRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::body::read_json;
use crate::error::ApiError;
use crate::worker::Operation;

pub(crate) const OPTIM_STEP: OperationKind = OperationKind::new("optim_step", |body| {
    read_json::<OptimStepRequest>(body).map(|request| Box::new(request) as Box<dyn Prepare>)
});

impl Prepare for OptimStepRequest {
    fn prepare(self: Box<Self>, _: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        self.params.check()?;
        match &self.params {
            OptimizerParams::Adam(params) => Ok(Operation::OptimStep(*params)),
            OptimizerParams::Dimuon(_) => Err(wrong_optimizer("dimuon")),
            OptimizerParams::Other(other) => Err(wrong_optimizer(&other.kind)),
            _ => Err(wrong_optimizer("another optimizer")),
        }
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
