//! What can be done to a training run.

use tinkrs_backend::StatePart;
use tinkrs_types::training::{OptimizerConfig, OptimizerParams};
use tinkrs_types::{LoraConfig, SamplingSessionId, TinkerPath};

use super::waiting_pass::WaitingPass;
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
    Pass(WaitingPass),
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

impl Operation {
    /// Whether it changes weights, gradients or optimizer.
    pub(crate) fn changes_run(&self) -> bool {
        match self {
            Self::Pass(pass) => pass.backward,
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
            Self::Pass(pass) if pass.backward => "forward_backward",
            Self::Pass(_) => "forward",
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
            Self::Pass(pass) => pass.size.tokens as u64,
            _ => 0,
        }
    }
}
