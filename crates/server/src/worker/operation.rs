//! What can be done to a training run.

use std::sync::Arc;

use tinkrs_types::{AdamParams, Datum, LoraConfig, LossFn, SamplingSessionId, TinkerPath};

use crate::checkpoints::NewCheckpoint;
use crate::custom_loss::CustomLoss;

/// What a pass computes.
#[derive(Debug)]
pub(crate) enum Loss {
    /// A loss of the engine.
    BuiltIn(LossFn),
    /// A loss that a client uploaded.
    Uploaded(Arc<CustomLoss>),
}

/// What can be done to a training run.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Creates it.
    Create(LoraConfig),
    /// Creates it as it was when a checkpoint was saved.
    CreateFrom { path: TinkerPath, optimizer: bool },
    /// Computes a loss, and its gradients if asked to.
    Pass {
        data: Vec<Datum>,
        loss: Loss,
        forward_only: bool,
    },
    /// Applies the gradients.
    OptimStep(AdamParams),
    /// Saves everything.
    SaveWeights(NewCheckpoint),
    /// Saves the adapter under a name.
    SaveNamedSampler(NewCheckpoint),
    /// Saves the adapter for one sampling session.
    SaveSampler(SamplingSessionId),
    /// Saves the adapter to be downloaded.
    SaveExternal(NewCheckpoint),
    /// Loads what was saved.
    LoadWeights { path: TinkerPath, optimizer: bool },
    /// Frees its memory.
    Unload,
}

impl Operation {
    /// Whether it changes weights, gradients or optimizer.
    pub(crate) fn changes_run(&self) -> bool {
        match self {
            Self::Pass { forward_only, .. } => !forward_only,
            Self::Create(_)
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

    /// Returns its name in the metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create_model",
            Self::CreateFrom { .. } => "create_model_from_checkpoint",
            Self::Pass {
                forward_only: false,
                ..
            } => "forward_backward",
            Self::Pass { .. } => "forward",
            Self::OptimStep(_) => "optim_step",
            Self::SaveWeights(_) => "save_weights",
            Self::SaveNamedSampler(_) | Self::SaveSampler(_) => "save_weights_for_sampler",
            Self::SaveExternal(_) => "save_weights_external",
            Self::LoadWeights { .. } => "load_weights",
            Self::Unload => "unload_model",
        }
    }

    /// Counts the tokens that it trains on.
    pub(super) fn tokens(&self) -> u64 {
        match self {
            Self::Pass { data, .. } => {
                let lengths = data.iter().filter_map(|datum| datum.model_input().len());
                lengths.sum::<usize>() as u64
            }
            _ => 0,
        }
    }
}
