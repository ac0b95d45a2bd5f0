//! How operations of training runs fail.

use tinkrs_types::{ModelId, SamplingSessionId, TinkerPath};

use super::failure;
use crate::checkpoints::SaveError;
use crate::error::chain;
use crate::results::OperationResult;

/// Why an operation of a training run failed.
pub(super) enum OperationError {
    NoModel(ModelId),
    NoCheckpoint(TinkerPath),
    OtherShape {
        path: TinkerPath,
        theirs: String,
        ours: String,
    },
    SamplerExists(SamplingSessionId),
    Save(SaveError),
    Panicked(ModelId),
    Backend(tinkrs_backend::Error),
}

impl OperationError {
    /// Returns the result of the operation.
    pub(super) fn into_outcome(self) -> OperationResult {
        match self {
            Self::NoModel(id) => OperationResult::user_error(format!(
                "model `{id}` has no weights: it was unloaded, or could not be created"
            )),
            Self::NoCheckpoint(path) => {
                OperationResult::user_error(format!("there is no checkpoint `{path}`"))
            }
            Self::OtherShape { path, theirs, ours } => OperationResult::user_error(format!(
                "`path`: `{path}` is of {theirs}; the model's `lora_config` is of {ours}"
            )),
            Self::SamplerExists(id) => OperationResult::user_error(format!(
                "`sampling_session_seq_id`: there is a sampling session `{id}` already"
            )),
            Self::Save(SaveError::Backend(error)) | Self::Backend(error) => failure(&error),
            Self::Panicked(id) => OperationResult::server_error(format!(
                "an internal error ended model `{id}`; load a checkpoint into a new one"
            )),
            Self::Save(error @ SaveError::Exists(..)) => {
                OperationResult::user_error(error.to_string())
            }
            Self::Save(error @ SaveError::Io(_)) => OperationResult::server_error(chain(&error)),
        }
    }
}

impl From<SaveError> for OperationError {
    fn from(error: SaveError) -> Self {
        Self::Save(error)
    }
}

impl From<tinkrs_backend::Error> for OperationError {
    fn from(error: tinkrs_backend::Error) -> Self {
        Self::Backend(error)
    }
}
