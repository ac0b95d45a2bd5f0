//! The second half of a decoder layer: what is computed for each row by itself.
//!
//! A new kind is a file beside [`mlp`], a variant here with its buffers, and the options of
//! [`ModelConfig`] that call for it. Every kind declares its tensors, loads them, goes forward and back,
//! and says what it keeps in between.

pub(crate) mod mixture;
pub(crate) mod mlp;

use super::backward::BackwardPass;
use super::forward::ForwardPass;
use super::linear::Linear;
use super::load::LayerReader;
use super::tensor_table::{FullNames, LayerTensors};
use crate::kernels::matrix::Mat;
use crate::kernels::panels::Panels;
use crate::{Error, ModelConfig};
use mixture::{Mixture, MixtureBuffers, MixtureKept};
use mlp::{Mlp, MlpBuffers, MlpKept};

/// The feed-forward part of a decoder layer.
pub(crate) enum FeedForward {
    Dense(Mlp),
    Experts(Mixture),
}

/// What the forward pass leaves for the backward pass: the buffers of the kind that ran, and empty ones
/// of the others.
#[derive(Debug)]
pub(crate) struct FeedForwardKept {
    dense: MlpKept,
    experts: MixtureKept,
}

/// Buffers that a feed-forward uses and forgets.
#[derive(Debug, Default)]
pub(crate) struct FeedForwardBuffers {
    dense: MlpBuffers,
    experts: MixtureBuffers,
}

impl FeedForward {
    /// Lists the tensors of one decoder layer.
    pub(crate) fn declare(config: &ModelConfig, tensors: &mut LayerTensors<'_>) {
        match config.features.experts {
            None => Mlp::declare(config, tensors),
            Some(experts) => Mixture::declare(config, experts, tensors),
        }
    }

    /// Counts the numbers in the buffers of a row, in both directions.
    pub(crate) fn buffer_numbers(config: &ModelConfig) -> usize {
        match config.features.experts {
            None => Mlp::buffer_numbers(config),
            Some(experts) => Mixture::buffer_numbers(config, experts),
        }
    }

    /// Names the matrix whose stored precision stands for that of the whole model.
    pub(crate) fn precision_probe(config: &ModelConfig) -> FullNames {
        let names = match config.features.experts {
            Some(_) => mixture::UP.in_expert(0, 0),
            None => Mlp::probe(config).in_layer(0),
        };
        names.weight()
    }

    pub(crate) fn load(config: &ModelConfig, reader: &LayerReader<'_>) -> Result<Self, Error> {
        Ok(match config.features.experts {
            None => Self::Dense(Mlp::load(config, reader)?),
            Some(experts) => Self::Experts(Mixture::load(config, experts, reader)?),
        })
    }

    /// Adds the outputs of all rows to `y`.
    pub(crate) fn forward(
        &self,
        pass: &ForwardPass<'_>,
        x: Mat<'_>,
        y: &mut [f32],
        kept: &mut FeedForwardKept,
        buffers: &mut FeedForwardBuffers,
    ) {
        match self {
            Self::Dense(mlp) => mlp.forward(pass, x, y, &mut kept.dense, &mut buffers.dense),
            Self::Experts(mixture) => {
                mixture.forward(pass, x, y, &mut kept.experts, &mut buffers.experts);
            }
        }
    }

    /// Writes the gradient of the input, given that of the output. What was kept is used up.
    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        dx: &mut [f32],
        kept: &mut FeedForwardKept,
        buffers: &mut FeedForwardBuffers,
    ) {
        match self {
            Self::Dense(mlp) => {
                mlp.backward(pass, x, dy, dx, &mut kept.dense, &mut buffers.dense);
            }
            Self::Experts(mixture) => {
                mixture.backward(pass, x, dy, dx, &mut kept.experts, &mut buffers.experts);
            }
        }
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Dense(mlp) => mlp.linears(),
            Self::Experts(mixture) => mixture.linears(),
        }
    }

    /// The matrix that has no adapter, where there is one.
    pub(crate) fn router(&self) -> Option<&Panels> {
        match self {
            Self::Dense(_) => None,
            Self::Experts(mixture) => Some(mixture.router()),
        }
    }
}

impl FeedForwardKept {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            dense: MlpKept::new(match config.features.experts {
                None => config.ffn,
                Some(_) => 0,
            }),
            experts: MixtureKept::new(config.features.experts),
        }
    }

    pub(crate) fn bytes_per_row(&self) -> usize {
        let Self { dense, experts } = self;
        dense.bytes_per_row() + experts.bytes_per_row()
    }
}
