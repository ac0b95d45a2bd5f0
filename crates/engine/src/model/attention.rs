//! The first half of a decoder layer: where rows of a sequence see each other.
//!
//! A new kind is a file beside [`full`], a variant here with its buffers, and the options of
//! [`ModelConfig`] that call for it. Every kind declares its tensors, loads them, goes forward and back,
//! and says what it keeps in between.

pub(crate) mod delta;
pub(crate) mod full;

use super::KvCache;
use super::backward::BackwardPass;
use super::forward::ForwardPass;
use super::linear::Linear;
use super::load::LayerReader;
use super::tensor_table::LayerTensors;
use crate::config::{DeltaRule, LayerKind};
use crate::kernels::matrix::Mat;
use crate::{Error, ModelConfig};
use delta::{DeltaAttention, DeltaAttentionBuffers, DeltaAttentionKept};
use full::{FullAttention, FullAttentionBuffers, FullAttentionKept};

/// The attention part of a decoder layer.
pub(crate) enum Attention {
    Full(FullAttention),
    Delta(DeltaAttention),
}

/// Where attention finds the keys and values of earlier positions.
pub(crate) enum Past<'a> {
    /// In the rows of this pass: every sequence starts at its first row.
    Rows,
    /// In caches, one a sequence, which have grown by this pass's rows.
    Caches(&'a mut [&'a mut KvCache]),
}

/// What the forward pass leaves for the backward pass: the buffers of the kind that ran, and empty ones
/// of the others.
#[derive(Debug)]
pub(crate) struct AttentionKept {
    full: FullAttentionKept,
    delta: DeltaAttentionKept,
}

/// Buffers that attention uses and forgets.
#[derive(Debug, Default)]
pub(crate) struct AttentionBuffers {
    full: FullAttentionBuffers,
    delta: DeltaAttentionBuffers,
}

impl Attention {
    /// Lists the tensors of one decoder layer.
    pub(crate) fn declare(config: &ModelConfig, tensors: &mut LayerTensors<'_>) {
        match delta_rule(config, tensors.layer()) {
            None => FullAttention::declare(config, tensors),
            Some(shape) => DeltaAttention::declare(config, shape, tensors),
        }
    }

    /// Counts the numbers in the buffers of a row, in both directions.
    pub(crate) fn buffer_numbers(config: &ModelConfig) -> usize {
        let delta = config.features.delta.map(DeltaAttention::buffer_numbers);
        FullAttention::buffer_numbers(config) + delta.unwrap_or(0)
    }

    pub(crate) fn load(config: &ModelConfig, reader: &LayerReader<'_>) -> Result<Self, Error> {
        Ok(match delta_rule(config, reader.layer) {
            None => Self::Full(FullAttention::load(config, reader)?),
            Some(shape) => Self::Delta(DeltaAttention::load(config, shape, reader)?),
        })
    }

    /// Adds the outputs of all rows to `y`, and stores keys and values where there are caches.
    pub(crate) fn forward(
        &self,
        pass: &mut ForwardPass<'_>,
        x: Mat<'_>,
        y: &mut [f32],
        kept: &mut AttentionKept,
        buffers: &mut AttentionBuffers,
    ) {
        match self {
            Self::Full(full) => full.forward(pass, x, y, &mut kept.full, &mut buffers.full),
            Self::Delta(delta) => delta.forward(pass, x, y, &mut kept.delta, &mut buffers.delta),
        }
    }

    /// Writes the gradient of the input if `dx` is given, from that of the output.
    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        dx: Option<&mut [f32]>,
        kept: &AttentionKept,
        buffers: &mut AttentionBuffers,
    ) {
        match self {
            Self::Full(full) => full.backward(pass, x, dy, dx, &kept.full, &mut buffers.full),
            Self::Delta(delta) => {
                delta.backward(pass, x, dy, dx, &kept.delta, &mut buffers.delta);
            }
        }
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Full(full) => full.linears(),
            Self::Delta(delta) => delta.linears(),
        }
    }
}

/// The shape of a layer's state, if it has one.
fn delta_rule(config: &ModelConfig, layer: usize) -> Option<DeltaRule> {
    let kind = config.layer_kind(layer);
    config.features.delta.filter(|_| kind == LayerKind::Delta)
}

impl AttentionKept {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            full: FullAttentionKept::new(config),
            delta: DeltaAttentionKept::new(config.features.delta),
        }
    }

    pub(crate) fn bytes_per_row(&self) -> usize {
        let Self { full, delta } = self;
        full.bytes_per_row() + delta.bytes_per_row()
    }
}
