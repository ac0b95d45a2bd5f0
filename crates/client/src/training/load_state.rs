use super::request::{Operation, Request};
use crate::TrainingClient;
use crate::auth::Secret;
use crate::connection::call::Call;
use crate::future::Pending;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::{CheckpointKind, TinkerPath};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::load_weights::LoadWeightsRequest;

const NAME: &str = "load_state";

/// Loads training state into a model that was just created.
#[derive(Clone, Debug)]
pub struct LoadState {
    path: TinkerPath,
    optimizer: bool,
    weights_access_token: Option<Secret>,
}

impl TrainingClient {
    /// Loads the weights of a checkpoint into a model that has done nothing yet.
    ///
    /// To go on from a checkpoint, prefer
    /// [`ServiceClient::create_training_client_from_state`](crate::ServiceClient::create_training_client_from_state),
    /// which creates the model to fit.
    pub fn load_state(&self, path: TinkerPath) -> Request<LoadState> {
        self.request(LoadState {
            path,
            optimizer: false,
            weights_access_token: None,
        })
    }
}

impl Request<LoadState> {
    /// Restores the optimizer's state as well. The default is to start it afresh.
    pub fn with_optimizer(mut self) -> Self {
        self.operation.optimizer = true;
        self
    }

    /// Reads another account's checkpoint with that account's credential.
    pub fn weights_access_token(mut self, token: impl Into<Secret>) -> Self {
        self.operation.weights_access_token = Some(token.into());
        self
    }
}

impl Operation for LoadState {
    type Output = ();

    fn submit(self, client: &TrainingClient) -> Pending<()> {
        if let Err(error) = self.path.require(CheckpointKind::Training) {
            return Pending::ready(NAME, Err(error.into()));
        }
        let model_id = client.inner.model_id.clone();
        client.inner.enqueue(
            NAME,
            RequestType::LoadWeights,
            move |seq_id| {
                let request = LoadWeightsRequest {
                    model_id: Some(model_id),
                    seq_id: Some(seq_id),
                    session_id: None,
                    model_seq_id: None,
                    base_model: None,
                    user_metadata: None,
                    path: self.path.to_string(),
                    optimizer: self.optimizer,
                    optimizer_config: None,
                    weights_access_token: self
                        .weights_access_token
                        .map(|token| token.expose().to_owned()),
                };
                Call::new(&endpoint::LOAD_WEIGHTS)
                    .named(NAME)
                    .json(&request)
            },
            |_| Ok(()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_account_s_credential_is_not_shown() {
        let load = LoadState {
            path: "tinker://run:train:0/weights/last".parse().unwrap(),
            optimizer: false,
            weights_access_token: Some("tml-hidden".into()),
        };
        let shown = format!("{load:?}");
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
