//! `optim_step`: applies the accumulated gradients.

use tinkrs_types::InvalidInput;
use tinkrs_wire::op::optim_step::OptimStepRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::body::read_json;
use crate::error::ApiError;
use crate::worker::Operation;

pub(crate) const OPTIM_STEP: OperationKind = OperationKind::new("optim_step", |body, _| {
    read_json::<OptimStepRequest>(body).map(|request| Box::new(request) as Box<dyn Prepare>)
});

impl Prepare for OptimStepRequest {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        self.params.check()?;
        let optimizer = &model
            .registry
            .run(model.owner, model.model_id)?
            .record
            .optimizer;
        let (found, expected) = (self.params.name(), optimizer.name());
        if found != expected {
            let allowed = format!("{expected}, the optimizer of this model");
            return Err(InvalidInput::new("optimizer_params.type", found, allowed).into());
        }
        Ok(Operation::OptimStep(self.params))
    }
}
