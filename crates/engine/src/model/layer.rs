//! A decoder layer: two parts, each behind a norm and beside the residual stream.
//!
//! ```text
//! h = x + attention(norm(x))        y = h + feed_forward(norm(h))
//! ```
//!
//! The layer owns the norms and the residual stream. What a part computes, what it is called in files,
//! what it keeps for the backward pass and what can be trained of it is in the part's own file.

use super::attention::{Attention, AttentionBuffers, AttentionKept};
use super::backward::BackwardPass;
use super::feed_forward::{FeedForward, FeedForwardBuffers, FeedForwardKept};
use super::forward::ForwardPass;
use super::linear::Linear;
use super::load::LayerReader;
use super::norm::Norm;
use super::tensor_table::{LayerTensors, Names, NormSpec};
use super::workspace::{KeptRows, sized};
use crate::kernels::matrix::Mat;
use crate::{Error, ModelConfig};

const ATTENTION_NORM: Names = Names::new("input_layernorm", "attn_norm");
const FEED_FORWARD_NORM: Names = Names::new("post_attention_layernorm", "ffn_norm");

/// The weights of a decoder layer.
pub(crate) struct Layer {
    attention_norm: Norm,
    attention: Attention,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
}

/// What a decoder layer keeps from its forward pass. Outputs of norms are recomputed.
#[derive(Debug)]
pub(crate) struct LayerKept {
    /// Input of the layer.
    pub(crate) x: KeptRows, // rows × hidden
    attention: AttentionKept,
    /// Residual stream between the two parts.
    middle: KeptRows, // rows × hidden
    feed_forward: FeedForwardKept,
}

/// Buffers that a decoder layer uses and forgets.
#[derive(Debug, Default)]
pub(crate) struct LayerBuffers {
    normed: Vec<f32>,   // rows × hidden
    d_normed: Vec<f32>, // rows × hidden
    attention: AttentionBuffers,
    feed_forward: FeedForwardBuffers,
}

impl Layer {
    /// Lists the tensors of one decoder layer.
    pub(crate) fn declare(config: &ModelConfig, tensors: &mut LayerTensors<'_>) {
        let norm = |names| NormSpec {
            names,
            width: config.hidden,
        };
        tensors.norm(&norm(ATTENTION_NORM));
        Attention::declare(config, tensors);
        tensors.norm(&norm(FEED_FORWARD_NORM));
        FeedForward::declare(config, tensors);
    }

    pub(crate) fn load(config: &ModelConfig, reader: &LayerReader<'_>) -> Result<Self, Error> {
        Ok(Self {
            attention_norm: reader.norm(ATTENTION_NORM)?,
            attention: Attention::load(config, reader)?,
            feed_forward_norm: reader.norm(FEED_FORWARD_NORM)?,
            feed_forward: FeedForward::load(config, reader)?,
        })
    }

    /// Runs the layer from `kept.x` to `y`.
    pub(crate) fn forward(
        &self,
        pass: &mut ForwardPass<'_>,
        kept: &mut LayerKept,
        y: &mut Vec<f32>,
        buffers: &mut LayerBuffers,
    ) {
        let LayerBuffers { normed, .. } = buffers;
        self.attention_norm.forward(&kept.x.values, normed);
        copy(&kept.x.values, &mut kept.middle.values);
        self.attention.forward(
            pass,
            Mat::new(normed, pass.rows.len(), kept.x.width()),
            &mut kept.middle.values,
            &mut kept.attention,
            &mut buffers.attention,
        );
        self.feed_forward_norm.forward(&kept.middle.values, normed);
        copy(&kept.middle.values, y);
        self.feed_forward.forward(
            pass,
            Mat::new(normed, pass.rows.len(), kept.x.width()),
            y,
            &mut kept.feed_forward,
            &mut buffers.feed_forward,
        );
    }

    /// Turns `d` from the gradient of the output into that of the input, or, unless `needs_input`,
    /// leaves it at the gradient in the middle.
    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        kept: &mut LayerKept,
        buffers: &mut LayerBuffers,
        d: &mut [f32],
        needs_input: bool,
    ) {
        let (count, hidden) = (pass.rows.len(), kept.x.width());
        let LayerBuffers {
            normed, d_normed, ..
        } = buffers;
        let d_normed = sized(d_normed, count * hidden);

        let middle = &kept.middle.values;
        self.feed_forward_norm.forward(middle, normed);
        self.feed_forward.backward(
            pass,
            Mat::new(normed, count, hidden),
            Mat::new(d, count, hidden),
            d_normed,
            &mut kept.feed_forward,
            &mut buffers.feed_forward,
        );
        self.feed_forward_norm
            .backward(middle, d_normed, d, &mut pass.gradients);

        let x = &kept.x.values;
        self.attention_norm.forward(x, normed);
        self.attention.backward(
            pass,
            Mat::new(normed, count, hidden),
            Mat::new(d, count, hidden),
            needs_input.then_some(&mut *d_normed),
            &kept.attention,
            &mut buffers.attention,
        );
        if needs_input {
            self.attention_norm
                .backward(x, d_normed, d, &mut pass.gradients);
        }
    }

    /// All linear layers.
    pub(crate) fn linears(&self) -> Vec<&Linear> {
        [self.attention.linears(), self.feed_forward.linears()].concat()
    }
}

impl LayerKept {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            x: KeptRows::new(config.hidden),
            attention: AttentionKept::new(config),
            middle: KeptRows::new(config.hidden),
            feed_forward: FeedForwardKept::new(config),
        }
    }

    /// Returns how much memory the forward pass of one row leaves in use, adapters aside.
    pub(crate) fn bytes_per_row(&self) -> usize {
        let Self {
            x,
            attention,
            middle,
            feed_forward,
        } = self;
        x.bytes_per_row()
            + attention.bytes_per_row()
            + middle.bytes_per_row()
            + feed_forward.bytes_per_row()
    }
}

fn copy(from: &[f32], to: &mut Vec<f32>) {
    to.clear();
    to.extend_from_slice(from);
}
