//! The second half of a decoder layer: what is computed for each row by itself.
//!
//! A new kind is a file beside [`mlp`], a variant here with its buffers, and the options of
//! [`ModelConfig`] that call for it. Every kind declares its tensors, loads them, goes forward and back,
//! and says what it keeps in between.

pub(crate) mod mlp;

use super::backward::BackwardPass;
use super::forward::ForwardPass;
use super::linear::Linear;
use super::load::LayerReader;
use super::tensor_table::{LayerTensors, Names};
use crate::kernels::matrix::Mat;
use crate::{Error, ModelConfig};
use mlp::{Mlp, MlpBuffers, MlpKept};

/// The feed-forward part of a decoder layer.
pub(crate) enum FeedForward {
    Dense(Mlp),
}

/// What the forward pass leaves for the backward pass: the buffers of the kind that ran, and empty ones
/// of the others.
#[derive(Debug)]
pub(crate) struct FeedForwardKept {
    dense: MlpKept,
}

/// Buffers that a feed-forward uses and forgets.
#[derive(Debug, Default)]
pub(crate) struct FeedForwardBuffers {
    dense: MlpBuffers,
}

impl FeedForward {
    /// Lists the tensors of one decoder layer.
    pub(crate) fn declare(config: &ModelConfig, tensors: &mut LayerTensors<'_>) {
        Mlp::declare(config, tensors);
    }

    /// Counts the numbers in the buffers of a row, in both directions.
    pub(crate) fn buffer_numbers(config: &ModelConfig) -> usize {
        Mlp::buffer_numbers(config)
    }

    /// Names the matrix whose stored precision stands for that of the whole model.
    pub(crate) fn precision_probe() -> Names {
        mlp::UP
    }

    pub(crate) fn load(config: &ModelConfig, reader: &LayerReader<'_>) -> Result<Self, Error> {
        Ok(Self::Dense(Mlp::load(config, reader)?))
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
        }
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Dense(mlp) => mlp.linears().into(),
        }
    }
}

impl FeedForwardKept {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            dense: MlpKept::new(config),
        }
    }

    pub(crate) fn bytes_per_row(&self) -> usize {
        let Self { dense } = self;
        dense.bytes_per_row()
    }
}
