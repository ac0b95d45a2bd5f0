//! What can be done to a training run.

use std::fmt;

use tinkrs_backend::{Error, PassRequest, StatePart};
use tinkrs_types::training::{OptimizerConfig, OptimizerParams};
use tinkrs_types::{LoraConfig, SamplingSessionId, TinkerPath};

use crate::checkpoints::NewCheckpoint;

/// What can be done to a training run.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Creates it.
    Create {
        lora: LoraConfig,
        optimizer: OptimizerConfig,
    },
    /// Creates it as it was when a checkpoint was saved.
    CreateFrom { path: TinkerPath, part: StatePart },
    /// Computes a loss, and its gradients if asked to.
    Pass(PassRequest),
    /// A pass that is read from the journal when its turn comes.
    JournaledPass(JournaledPass),
    /// Applies the gradients.
    OptimStep(OptimizerParams),
    /// Saves everything.
    SaveWeights(NewCheckpoint),
    /// Saves the adapter under a name.
    SaveNamedSampler(NewCheckpoint),
    /// Saves the adapter for one sampling session.
    SaveSampler(SamplingSessionId),
    /// Saves the adapter to be downloaded.
    SaveExternal(NewCheckpoint),
    /// Loads what was saved.
    LoadWeights { path: TinkerPath, part: StatePart },
    /// Frees its memory.
    Unload,
}

/// A pass that is read from the journal when its turn comes: after a restart there may be more of them than
/// fit in memory.
pub(crate) struct JournaledPass {
    pub(crate) backward: bool,
    pub(crate) tokens: u64,
    pub(crate) read: Box<dyn FnOnce() -> Result<PassRequest, Error> + Send>,
}

impl fmt::Debug for JournaledPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournaledPass")
            .field("backward", &self.backward)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl Operation {
    /// Whether it changes weights, gradients or optimizer.
    pub(crate) fn changes_run(&self) -> bool {
        match self {
            Self::Pass(request) => request.backward,
            Self::JournaledPass(pass) => pass.backward,
            Self::Create { .. }
            | Self::CreateFrom { .. }
            | Self::OptimStep(_)
            | Self::LoadWeights { .. }
            | Self::Unload => true,
            Self::SaveWeights(_)
            | Self::SaveNamedSampler(_)
            | Self::SaveSampler(_)
            | Self::SaveExternal(_) => false,
        }
    }

    /// Whether doing it again, to the same run, gives the same result and leaves nothing else behind.
    pub(super) fn is_repeatable(&self) -> bool {
        matches!(self, Self::Pass(_) | Self::OptimStep(_))
    }

    /// Returns its name in the metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create_model",
            Self::CreateFrom { .. } => "create_model_from_checkpoint",
            Self::Pass(request) if request.backward => "forward_backward",
            Self::JournaledPass(pass) if pass.backward => "forward_backward",
            Self::Pass(_) | Self::JournaledPass(_) => "forward",
            Self::OptimStep(_) => "optim_step",
            Self::SaveWeights(_) => "save_weights",
            Self::SaveNamedSampler(_) | Self::SaveSampler(_) => "save_weights_for_sampler",
            Self::SaveExternal(_) => "save_weights_external",
            Self::LoadWeights { .. } => "load_weights",
            Self::Unload => "unload_model",
        }
    }

    /// Counts the tokens that it trains on.
    pub(crate) fn tokens(&self) -> u64 {
        match self {
            Self::Pass(request) => {
                let data = request.data.iter();
                let lengths = data.filter_map(|datum| datum.model_input().len());
                lengths.sum::<usize>() as u64
            }
            Self::JournaledPass(pass) => pass.tokens,
            _ => 0,
        }
    }
}
