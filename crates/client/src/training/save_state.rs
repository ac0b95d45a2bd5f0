use super::request::{Operation, Request};
use crate::connection::call::Call;
use crate::future::Pending;
use crate::{Error, TrainingClient};
use tinkrs_types::protocol::{RequestType, check_ttl};
use tinkrs_types::{TinkerPath, UserMetadata};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::save_weights::{SaveWeightsRequest, SaveWeightsResult};

const NAME: &str = "save_state";

/// Saves the model's training state under a name.
#[derive(Clone, Debug)]
pub struct SaveState {
    name: String,
    ttl_seconds: Option<u64>,
    overwrite: bool,
    user_metadata: Option<UserMetadata>,
}

impl TrainingClient {
    /// Saves weights and optimizer state under a name, to go on from later.
    ///
    /// The result is the checkpoint's path.
    pub fn save_state(&self, name: impl Into<String>) -> Request<SaveState> {
        self.request(SaveState {
            name: name.into(),
            ttl_seconds: None,
            overwrite: false,
            user_metadata: None,
        })
    }
}

impl Request<SaveState> {
    /// Deletes the checkpoint after this long: an hour to ten years. The default is never.
    pub fn ttl_seconds(mut self, seconds: u64) -> Self {
        self.operation.ttl_seconds = Some(seconds);
        self
    }

    /// Replaces a checkpoint of the same name, and its labels. The default is to refuse.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.operation.overwrite = overwrite;
        self
    }

    /// Labels the checkpoint.
    pub fn user_metadata(mut self, metadata: UserMetadata) -> Self {
        self.operation.user_metadata = Some(metadata);
        self
    }
}

impl Operation for SaveState {
    type Output = TinkerPath;

    fn submit(self, client: &TrainingClient) -> Pending<TinkerPath> {
        if let Err(error) = self.ttl_seconds.map_or(Ok(()), check_ttl) {
            return Pending::ready(NAME, Err(error.into()));
        }
        let model_id = client.inner.model_id.clone();
        client.inner.enqueue(
            NAME,
            RequestType::SaveWeights,
            move |seq_id| {
                let request = SaveWeightsRequest {
                    model_id,
                    path: Some(self.name),
                    seq_id: Some(seq_id),
                    ttl_seconds: self.ttl_seconds,
                    overwrite: self.overwrite,
                    user_metadata: self.user_metadata,
                };
                Call::new(&endpoint::SAVE_WEIGHTS)
                    .named(NAME)
                    .json(&request)
            },
            |fetched| {
                let saved: SaveWeightsResult = serde_json::from_slice(&fetched.body)
                    .map_err(|error| Error::answer(NAME, error))?;
                Ok(saved.path)
            },
        )
    }
}
