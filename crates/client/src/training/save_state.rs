use super::request::{Operation, Request};
use crate::connection::call::Call;
use crate::future::Pending;
use crate::{Error, TrainingClient, ttl};
use std::time::Duration;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::{TinkerPath, UserMetadata};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::save_weights::{SaveWeightsRequest, SaveWeightsResult};

const NAME: &str = "save_state";

/// Saves the model's training state under a name.
#[derive(Clone, Debug)]
pub struct SaveState {
    name: String,
    ttl: Option<Duration>,
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
            ttl: None,
            overwrite: false,
            user_metadata: None,
        })
    }
}

impl Request<SaveState> {
    /// Deletes the checkpoint after this long: an hour to ten years. The default is never.
    #[doc(alias = "ttl_seconds")]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.operation.ttl = Some(ttl);
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
        let ttl_seconds = match ttl::seconds(self.ttl) {
            Ok(seconds) => seconds,
            Err(error) => return Pending::ready(NAME, Err(error.into())),
        };
        let model_id = client.inner.model_id.clone();
        client.inner.enqueue(
            NAME,
            RequestType::SaveWeights,
            move |seq_id| {
                let request = SaveWeightsRequest {
                    model_id,
                    path: Some(self.name),
                    seq_id: Some(seq_id),
                    ttl_seconds,
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
