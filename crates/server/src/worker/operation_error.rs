//! How operations of training runs fail.

use std::fmt;

use tinkrs_types::service::ErrorCategory;
use tinkrs_types::{ModelId, SamplingSessionId, TinkerPath};

use super::category;
use crate::checkpoints::SaveError;
use crate::error::{ApiError, chain};
use crate::memory::Refusal;
use crate::results::OperationResult;
use crate::store::manifest::Damage;

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
    /// What the model did before the server was restarted could not be repeated.
    SetAside(ModelId, String),
    Memory(Refusal),
    /// The request could not be read again from the journal.
    Unreadable(ApiError),
    Backend(tinkrs_backend::Error),
    Damaged(Damage),
}

impl OperationError {
    /// Returns the result of the operation.
    pub(super) fn into_outcome(self) -> OperationResult {
        OperationResult::failed(self.to_string(), self.category())
    }

    fn category(&self) -> ErrorCategory {
        match self {
            Self::NoModel(_)
            | Self::NoCheckpoint(_)
            | Self::OtherShape { .. }
            | Self::SamplerExists(_)
            | Self::Save(SaveError::Exists(..)) => ErrorCategory::User,
            Self::Memory(refusal) if refusal.is_permanent() => ErrorCategory::User,
            Self::Save(SaveError::Backend(error)) | Self::Backend(error) => category(error),
            Self::Memory(_)
            | Self::Panicked(_)
            | Self::SetAside(..)
            | Self::Damaged(_)
            | Self::Unreadable(_)
            | Self::Save(SaveError::Io(_)) => ErrorCategory::Server,
        }
    }

    /// Whether the run has not become what it was after the same operation before: it was there, and it
    /// may be done at another time.
    pub(super) fn leaves_run_behind(&self) -> bool {
        !matches!(
            self,
            Self::NoModel(_) | Self::Panicked(_) | Self::SetAside(..)
        )
    }
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoModel(id) => write!(
                f,
                "model `{id}` has no weights: it was unloaded, or could not be created"
            ),
            Self::NoCheckpoint(path) => write!(f, "there is no checkpoint `{path}`"),
            Self::OtherShape { path, theirs, ours } => write!(
                f,
                "`path`: `{path}` is of {theirs}; the model's `lora_config` and \
                 `optimizer_config` are of {ours}"
            ),
            Self::SamplerExists(id) => write!(
                f,
                "`sampling_session_seq_id`: there is a sampling session `{id}` already"
            ),
            Self::Panicked(id) => write!(
                f,
                "an internal error ended model `{id}`; load a checkpoint into a new one"
            ),
            Self::SetAside(id, why) => write!(
                f,
                "model `{id}` could not be brought back to where it was when the server was restarted \
                 ({why}); the next start tries again"
            ),
            Self::Memory(refusal) => refusal.fmt(f),
            Self::Unreadable(why) => f.write_str(why.detail()),
            Self::Save(SaveError::Backend(error)) | Self::Backend(error) => {
                f.write_str(&chain(error))
            }
            Self::Save(error) => f.write_str(&chain(error)),
            Self::Damaged(damage) => f.write_str(&chain(damage)),
        }
    }
}

impl From<Refusal> for OperationError {
    fn from(refusal: Refusal) -> Self {
        Self::Memory(refusal)
    }
}

impl From<SaveError> for OperationError {
    fn from(error: SaveError) -> Self {
        Self::Save(error)
    }
}

impl From<Damage> for OperationError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<tinkrs_backend::Error> for OperationError {
    fn from(error: tinkrs_backend::Error) -> Self {
        Self::Backend(error)
    }
}
