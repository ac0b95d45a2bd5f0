use super::request::{Operation, Request};
use crate::connection::call::Call;
use crate::future::Pending;
use crate::{Error, TrainingClient};
use tinkrs_types::protocol::RequestType;
use tinkrs_types::training::{OptimStepOutput, OptimizerParams};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::optim_step::OptimStepRequest;

const NAME: &str = "optim_step";

/// Applies the accumulated gradients and clears them.
#[derive(Clone, Debug)]
pub struct OptimStep {
    params: OptimizerParams,
}

impl TrainingClient {
    /// Applies the gradients accumulated since the last step, and clears them.
    ///
    /// The parameters are those of the optimizer that the model was created with:
    /// [`AdamParams`](tinkrs_types::AdamParams) or [`DimuonParams`](tinkrs_types::training::DimuonParams).
    pub fn optim_step(&self, params: impl Into<OptimizerParams>) -> Request<OptimStep> {
        self.request(OptimStep {
            params: params.into(),
        })
    }
}

impl Operation for OptimStep {
    type Output = OptimStepOutput;

    fn submit(self, client: &TrainingClient) -> Pending<OptimStepOutput> {
        if let Err(error) = self.params.check() {
            return Pending::ready(NAME, Err(error.into()));
        }
        let model_id = client.inner.model_id.clone();
        client.inner.enqueue(
            NAME,
            RequestType::OptimStep,
            move |seq_id| {
                let request = OptimStepRequest {
                    model_id,
                    seq_id: Some(seq_id),
                    params: self.params,
                };
                Call::new(&endpoint::OPTIM_STEP).json(&request)
            },
            |fetched| {
                serde_json::from_slice(&fetched.body).map_err(|error| Error::answer(NAME, error))
            },
        )
    }
}
