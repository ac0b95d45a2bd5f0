use super::request::{Operation, Request};
use crate::connection::call::Call;
use crate::future::Pending;
use crate::{Error, TrainingClient, ttl};
use std::time::Duration;
use tinkrs_types::InvalidInput;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::training::ExternalSave;
use tinkrs_wire::endpoint;
use tinkrs_wire::op::save_weights_external::SaveWeightsExternalRequest;

const NAME: &str = "save_weights_external";
const MAX_RECIPIENTS: usize = 10;

/// Saves weights as files to download.
#[derive(Clone, Debug)]
pub struct SaveWeightsExternal {
    name: String,
    ttl: Option<Duration>,
    recipients: Option<Vec<String>>,
}

impl TrainingClient {
    /// Saves the weights as files to download. The result is their path and size.
    pub fn save_weights_external(&self, name: impl Into<String>) -> Request<SaveWeightsExternal> {
        self.request(SaveWeightsExternal {
            name: name.into(),
            ttl: None,
            recipients: None,
        })
    }
}

impl Request<SaveWeightsExternal> {
    /// Deletes the checkpoint after this long: an hour to ten years. The default is never.
    #[doc(alias = "ttl_seconds")]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.operation.ttl = Some(ttl);
        self
    }

    /// Encrypts the files for up to ten keys: `age1…` or SSH public keys. The default is none.
    pub fn age_encryption_recipients(mut self, keys: impl Into<Vec<String>>) -> Self {
        self.operation.recipients = Some(keys.into());
        self
    }
}

impl SaveWeightsExternal {
    /// Checks the settings and returns the time to live in seconds.
    fn check(&self) -> Result<Option<u64>, InvalidInput> {
        let ttl_seconds = ttl::seconds(self.ttl)?;
        let recipients = self.recipients.as_deref().unwrap_or_default();
        if recipients.len() > MAX_RECIPIENTS {
            let allowed = format!("at most {MAX_RECIPIENTS}");
            return Err(InvalidInput::new(
                "age_encryption_recipients",
                recipients.len(),
                allowed,
            ));
        }
        Ok(ttl_seconds)
    }
}

impl Operation for SaveWeightsExternal {
    type Output = ExternalSave;

    fn submit(self, client: &TrainingClient) -> Pending<ExternalSave> {
        let ttl_seconds = match self.check() {
            Ok(seconds) => seconds,
            Err(error) => return Pending::ready(NAME, Err(error.into())),
        };
        let model_id = client.inner.model_id.clone();
        client.inner.enqueue(
            NAME,
            RequestType::SaveWeightsExternal,
            move |seq_id| {
                let request = SaveWeightsExternalRequest {
                    model_id,
                    path: self.name,
                    seq_id: Some(seq_id),
                    ttl_seconds,
                    age_encryption_recipients: self.recipients,
                };
                Call::new(&endpoint::SAVE_WEIGHTS_EXTERNAL).json(&request)
            },
            |fetched| {
                serde_json::from_slice(&fetched.body).map_err(|error| Error::answer(NAME, error))
            },
        )
    }
}
