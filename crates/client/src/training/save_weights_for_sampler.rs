use super::client::Inner;
use super::request::{Operation, Request};
use crate::connection::call::Call;
use crate::future::Pending;
use crate::future::poll::RawResult;
use crate::sampling::SamplingClient;
use crate::sampling::{RetryConfig, SamplerOptions};
use crate::{Error, TrainingClient, ttl};
use std::sync::Arc;
use std::time::Duration;
use tinkrs_types::protocol::RequestType;
use tinkrs_types::{TinkerPath, UserMetadata};
use tinkrs_wire::endpoint;
use tinkrs_wire::op::save_weights_for_sampler::{
    SaveWeightsForSamplerRequest, SaveWeightsForSamplerResult,
};

const NAME: &str = "save_weights_for_sampler";

/// Saves weights to sample from under a name.
#[derive(Clone, Debug)]
pub struct SaveWeightsForSampler {
    name: String,
    ttl: Option<Duration>,
    user_metadata: Option<UserMetadata>,
}

/// Saves weights for one sampler, which comes as the result.
#[derive(Clone, Debug)]
pub struct SaveWeightsAndGetSamplingClient {
    options: SamplerOptions,
}

impl TrainingClient {
    /// Saves the weights under a name, to sample from. The result is the checkpoint's path.
    pub fn save_weights_for_sampler(
        &self,
        name: impl Into<String>,
    ) -> Request<SaveWeightsForSampler> {
        self.request(SaveWeightsForSampler {
            name: name.into(),
            ttl: None,
            user_metadata: None,
        })
    }

    /// Saves the weights without a name and opens them for sampling.
    pub fn save_weights_and_get_sampling_client(&self) -> Request<SaveWeightsAndGetSamplingClient> {
        self.request(SaveWeightsAndGetSamplingClient {
            options: SamplerOptions::default(),
        })
    }
}

impl Request<SaveWeightsForSampler> {
    /// Deletes the checkpoint after this long: an hour to ten years. The default is never.
    #[doc(alias = "ttl_seconds")]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.operation.ttl = Some(ttl);
        self
    }

    /// Labels the checkpoint.
    pub fn user_metadata(mut self, metadata: UserMetadata) -> Self {
        self.operation.user_metadata = Some(metadata);
        self
    }
}

impl Request<SaveWeightsAndGetSamplingClient> {
    /// Records with every sample what the loss `stable_reinforce` needs. The default is not to.
    pub fn record_stability_info(mut self, record: bool) -> Self {
        self.operation.options.record_stability_info = record;
        self
    }

    /// Sets how whole samples are retried.
    pub fn retry_config(mut self, retry: RetryConfig) -> Self {
        self.operation.options.retry = retry;
        self
    }
}

impl Operation for SaveWeightsForSampler {
    type Output = TinkerPath;

    fn submit(self, client: &TrainingClient) -> Pending<TinkerPath> {
        let ttl_seconds = match ttl::seconds(self.ttl) {
            Ok(seconds) => seconds,
            Err(error) => return Pending::ready(NAME, Err(error.into())),
        };
        let Self {
            name,
            user_metadata,
            ..
        } = self;
        let request = SaveWeightsForSamplerRequest {
            model_id: client.inner.model_id.clone(),
            path: Some(name),
            sampling_session_seq_id: None,
            seq_id: None,
            ttl_seconds,
            user_metadata,
        };
        save(&client.inner, request, |saved| {
            saved
                .path
                .ok_or_else(|| Error::answer(NAME, "no path of the checkpoint"))
        })
    }
}

impl Operation for SaveWeightsAndGetSamplingClient {
    type Output = SamplingClient;

    fn submit(self, client: &TrainingClient) -> Pending<SamplingClient> {
        let session = Arc::clone(&client.inner.session);
        // The number is taken once, so every retry of the request is the same request.
        let request = SaveWeightsForSamplerRequest {
            model_id: client.inner.model_id.clone(),
            path: None,
            sampling_session_seq_id: Some(session.next_sampler()),
            seq_id: None,
            ttl_seconds: None,
            user_metadata: None,
        };
        save(&client.inner, request, move |saved| {
            let missing = || Error::answer(NAME, "no id of the sampling session");
            let id = saved.sampling_session_id.ok_or_else(missing)?;
            Ok(SamplingClient::original(session, id, self.options))
        })
    }
}

fn save<T: Send + 'static>(
    inner: &Arc<Inner>,
    request: SaveWeightsForSamplerRequest,
    read: impl FnOnce(SaveWeightsForSamplerResult) -> Result<T, Error> + Send + 'static,
) -> Pending<T> {
    inner.enqueue(
        NAME,
        RequestType::SaveWeightsForSampler,
        move |seq_id| {
            let request = SaveWeightsForSamplerRequest {
                seq_id: Some(seq_id),
                ..request
            };
            Call::new(&endpoint::SAVE_WEIGHTS_FOR_SAMPLER).json(&request)
        },
        move |fetched: RawResult| {
            read(
                serde_json::from_slice(&fetched.body)
                    .map_err(|error| Error::answer(NAME, error))?,
            )
        },
    )
}
