use super::client::SamplingClient;
use super::sample::{Job, Sample, spawn};
use crate::Error;
use crate::future::Pending;
use crate::training::BoxFuture;
use std::future::IntoFuture;
use std::sync::Arc;
use tinkrs_types::{ModelInput, SamplingParams};

/// Log-probabilities of a prompt that have been described but not asked for.
#[derive(Clone, Debug)]
#[must_use = "nothing is computed until this is awaited or submitted"]
pub struct ComputeLogprobs {
    sample: Sample,
}

impl SamplingClient {
    /// Computes the log-probability of each token of a prompt.
    ///
    /// The result has one number for each token, NaN where there is none: nothing comes before
    /// the first token.
    pub fn compute_logprobs(&self, prompt: impl Into<ModelInput>) -> ComputeLogprobs {
        ComputeLogprobs {
            sample: self
                .sample(prompt, SamplingParams::new(1))
                .prompt_logprobs(true),
        }
    }
}

impl ComputeLogprobs {
    /// Computes the last `n` positions only. The default is all.
    pub fn last_n(mut self, n: u32) -> Self {
        self.sample = self.sample.prompt_logprobs_last_n(n);
        self
    }

    /// Hands the work to the client's own task and returns at once.
    pub fn submit(self) -> Pending<Vec<f32>> {
        let inner = Arc::clone(&self.sample.client().inner);
        if let Err(error) = self.sample.check() {
            return Pending::ready("compute_logprobs", Err(error.into()));
        }
        spawn(inner, Job::new(self.sample, true), |output| {
            let missing =
                || Error::answer("compute_logprobs", "no log-probabilities of the prompt");
            output.prompt_logprobs.ok_or_else(missing)
        })
    }
}

impl IntoFuture for ComputeLogprobs {
    type Output = Result<Vec<f32>, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.submit().await })
    }
}
