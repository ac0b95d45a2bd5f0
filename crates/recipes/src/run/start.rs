//! The weights that a run starts from.

use super::config::Adapter;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use tinkrs::training::operation::CreateTrainingClientFromState;
use tinkrs::{CheckpointKind, SamplingClient, ServiceClient, TinkerPath};

/// A checkpoint that a run starts from, in place of a new adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Where it is.
    pub path: TinkerPath,
    /// Whether its optimizer goes on, too. Another phase of training has a learning rate of its own, for which
    /// a new optimizer is right.
    #[serde(default)]
    pub with_optimizer: bool,
}

impl Start {
    /// Starts from a checkpoint with a new optimizer.
    pub fn new(path: TinkerPath) -> Self {
        Self {
            path,
            with_optimizer: false,
        }
    }

    /// Refuses settings that contradict the checkpoint.
    pub(super) async fn check(
        &self,
        service: &ServiceClient,
        adapter: &Adapter,
    ) -> Result<(), Error> {
        let rest = service.create_rest_client();
        let info = rest.get_weights_info_by_tinker_path(&self.path).await?;
        if info.base_model != adapter.base_model {
            let (given, path, trained) = (&adapter.base_model, &self.path, info.base_model);
            let problem = format!("{given}, but {path} was trained on {trained}");
            return Err(Error::setting("base_model", problem));
        }
        match (adapter.rank, info.lora_rank) {
            (Some(given), Some(rank)) if given != rank => {
                let problem = format!("{given}, but {} has rank {rank}", self.path);
                Err(Error::setting("rank", problem))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn open(&self, service: &ServiceClient) -> CreateTrainingClientFromState {
        let path = self.path.clone();
        if self.with_optimizer {
            service.create_training_client_from_state_with_optimizer(path)
        } else {
            service.create_training_client_from_state(path)
        }
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optimizer = if self.with_optimizer {
            " with its optimizer"
        } else {
            ""
        };
        write!(f, "{}{optimizer}", self.path)
    }
}

/// What a run is compared with, where that is not what it starts from: a base model or a checkpoint.
///
/// In settings and journals it is a text, a path `tinker://…` or a model's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ReferenceModel {
    /// A checkpoint, saved for sampling or for training.
    Checkpoint(TinkerPath),
    /// A model of the server.
    Base(String),
}

impl TryFrom<String> for ReferenceModel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.starts_with("tinker://") {
            let path = text.parse::<TinkerPath>();
            return path.map(Self::Checkpoint).map_err(|e| e.to_string());
        }
        Ok(Self::Base(text))
    }
}

impl From<ReferenceModel> for String {
    fn from(reference: ReferenceModel) -> Self {
        reference.to_string()
    }
}

impl From<TinkerPath> for ReferenceModel {
    fn from(path: TinkerPath) -> Self {
        Self::Checkpoint(path)
    }
}

impl fmt::Display for ReferenceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint(path) => path.fmt(f),
            Self::Base(name) => name.fmt(f),
        }
    }
}

/// Opens what a run is compared with for sampling: what it starts from, unless something else is given.
pub(crate) async fn reference_sampler(
    service: &ServiceClient,
    adapter: &Adapter,
    reference: Option<&ReferenceModel>,
) -> Result<SamplingClient, Error> {
    match reference {
        Some(ReferenceModel::Checkpoint(path)) => sampler_of(service, path).await,
        Some(ReferenceModel::Base(name)) => {
            Ok(service.create_sampling_client(name.as_str()).await?)
        }
        None => sampler_before(service, adapter).await,
    }
}

/// Opens the weights of a checkpoint for sampling, whether it was saved for that or for training.
///
/// # Errors
/// If they cannot be had.
pub async fn sampler_of(
    service: &ServiceClient,
    path: &TinkerPath,
) -> Result<SamplingClient, Error> {
    if path.kind() == CheckpointKind::Training {
        let model = service.create_training_client_from_state(path.clone());
        let weights = model.await?.save_weights_and_get_sampling_client();
        return Ok(weights.await?);
    }
    Ok(service.create_sampling_client(path.clone()).await?)
}

/// Opens what a run starts from for sampling.
async fn sampler_before(
    service: &ServiceClient,
    adapter: &Adapter,
) -> Result<SamplingClient, Error> {
    match &adapter.from {
        Some(start) => sampler_of(service, &start.path).await,
        None => {
            let base_model = adapter.base_model.as_str();
            Ok(service.create_sampling_client(base_model).await?)
        }
    }
}
