//! `load_weights`: into a model that exists, or as the creation of a new one.

use tinkrs_backend::StatePart;
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{CheckpointKind, TinkerPath};
use tinkrs_wire::op::load_weights::LoadWeightsRequest;

use super::{OfModel, OperationKind, Prepare};
use crate::body::read_json;
use crate::error::ApiError;
use crate::worker::Operation;

pub(crate) const LOAD_WEIGHTS: OperationKind = OperationKind::new("load_weights", |body, _| {
    read_json::<LoadWeightsRequest>(body).map(|request| Box::new(request) as Box<dyn Prepare>)
});

impl Prepare for LoadWeightsRequest {
    fn prepare(self: Box<Self>, model: &mut OfModel<'_>) -> Result<Operation, ApiError> {
        let path = source(&self)?;
        if self.model_id.is_none() {
            let part = part(&self, OptimizerConfig::default());
            return Ok(Operation::CreateFrom { path, part });
        }
        if self.session_id.is_some()
            || self.model_seq_id.is_some()
            || self.base_model.is_some()
            || self.user_metadata.is_some()
            || self.optimizer_config.is_some()
        {
            return Err(ApiError::bad_request(
                "`session_id`, `model_seq_id`, `base_model`, `user_metadata` and \
                 `optimizer_config` do not go with `model_id`",
            ));
        }
        // The checkpoint may be the result of an operation that has not run yet; what can be known
        // now is whether it belongs to the same base model.
        let saved = model.server.shared().checkpoints.find(model.owner, &path);
        if let Some(saved) = saved {
            let run = model.registry.run(model.owner, model.model_id)?;
            let (ours, theirs) = (&run.record.base_model, &saved.info.base_model);
            if theirs != ours {
                return Err(ApiError::bad_request(format!(
                    "`path`: `{path}` belongs to `{theirs}`, and the model to `{ours}`"
                )));
            }
        }
        let run = model.registry.run(model.owner, model.model_id)?;
        let part = part(&self, run.record.optimizer.clone());
        Ok(Operation::LoadWeights { path, part })
    }
}

/// Returns what to load of a checkpoint. Without its optimizer, a new one takes its place: the one that the
/// request asks for, or else this one.
pub(crate) fn part(request: &LoadWeightsRequest, optimizer: OptimizerConfig) -> StatePart {
    if request.optimizer {
        StatePart::Everything
    } else {
        StatePart::Weights(request.optimizer_config.clone().unwrap_or(optimizer))
    }
}

/// Returns the checkpoint to load.
pub(crate) fn source(request: &LoadWeightsRequest) -> Result<TinkerPath, ApiError> {
    if request.weights_access_token.is_some() {
        return Err(ApiError::bad_request(
            "`weights_access_token`: this server makes no such tokens; publish the checkpoint instead",
        ));
    }
    let path: TinkerPath = request.path.parse()?;
    path.require(CheckpointKind::Training)?;
    Ok(path)
}
