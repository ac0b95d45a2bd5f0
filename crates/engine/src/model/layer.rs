//! A decoder layer: two parts, each behind a norm and beside the residual stream.
//!
//! ```text
//! h = x + attention(norm(x))        y = h + feed_forward(norm(h))
//! ```
//!
//! In some models the outputs of both parts are normalised, too, before they are added.
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
use crate::config::Architecture;
use crate::kernels::matrix::Mat;
use crate::kernels::panels::Panels;
use crate::{Error, ModelConfig};

const ATTENTION_NORM: Names = Names::new("input_layernorm", "attn_norm");
const FEED_FORWARD_NORM: Names = Names::new("post_attention_layernorm", "ffn_norm");
// In models that normalise outputs, the name above is that of attention's output.
// In GGUF files of gpt-oss and Qwen3.5, the norm before the second part has this name.
const POST_ATTENTION_NORM: Names = Names::new("post_attention_layernorm", "post_attention_norm");
const ATTENTION_OUTPUT_NORM: Names = Names::new("post_attention_layernorm", "post_attention_norm");
const FEED_FORWARD_INPUT_NORM: Names = Names::new("pre_feedforward_layernorm", "ffn_norm");
const FEED_FORWARD_OUTPUT_NORM: Names = Names::new("post_feedforward_layernorm", "post_ffw_norm");

/// The weights of a decoder layer.
pub(crate) struct Layer {
    attention_norm: Norm,
    attention: Attention,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
    output_norms: Option<OutputNorms>,
}

struct OutputNorms {
    attention: Norm,
    feed_forward: Norm,
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
    /// Outputs of the two parts, where they are normalised.
    outputs: Option<[KeptRows; 2]>, // rows × hidden
}

/// Buffers that a decoder layer uses and forgets.
#[derive(Debug, Default)]
pub(crate) struct LayerBuffers {
    normed: Vec<f32>,   // rows × hidden
    d_normed: Vec<f32>, // rows × hidden
    d_output: Vec<f32>, // rows × hidden
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
        if config.features.output_norms {
            tensors.norm(&norm(ATTENTION_OUTPUT_NORM));
            tensors.norm(&norm(FEED_FORWARD_INPUT_NORM));
            FeedForward::declare(config, tensors);
            tensors.norm(&norm(FEED_FORWARD_OUTPUT_NORM));
        } else {
            tensors.norm(&norm(match config.architecture {
                Architecture::GptOss | Architecture::Qwen35 | Architecture::Qwen35Moe => {
                    POST_ATTENTION_NORM
                }
                _ => FEED_FORWARD_NORM,
            }));
            FeedForward::declare(config, tensors);
        }
    }

    pub(crate) fn load(config: &ModelConfig, reader: &LayerReader<'_>) -> Result<Self, Error> {
        Ok(Self {
            attention_norm: reader.norm(ATTENTION_NORM)?,
            attention: Attention::load(config, reader)?,
            feed_forward_norm: reader.norm(match config.features.output_norms {
                true => FEED_FORWARD_INPUT_NORM,
                false => FEED_FORWARD_NORM,
            })?,
            feed_forward: FeedForward::load(config, reader)?,
            output_norms: match config.features.output_norms {
                true => Some(OutputNorms {
                    attention: reader.norm(ATTENTION_OUTPUT_NORM)?,
                    feed_forward: reader.norm(FEED_FORWARD_OUTPUT_NORM)?,
                }),
                false => None,
            },
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
        let (rows, hidden) = (pass.rows.len(), kept.x.width());
        let (norms, outputs) = (self.output_norms.as_ref(), kept.outputs.as_mut());
        let mut outputs = norms.zip(outputs);
        copy(&kept.x.values, &mut kept.middle.values);
        let output = match &mut outputs {
            None => &mut kept.middle.values,
            Some((_, [output, _])) => cleared(output, rows),
        };
        self.attention.forward(
            pass,
            Mat::new(normed, rows, hidden),
            output,
            &mut kept.attention,
            &mut buffers.attention,
        );
        if let Some((norms, [output, _])) = &mut outputs {
            norms.attention.forward(&output.values, normed);
            add(normed, &mut kept.middle.values);
        }
        self.feed_forward_norm.forward(&kept.middle.values, normed);
        copy(&kept.middle.values, y);
        let output = match &mut outputs {
            None => &mut *y,
            Some((_, [_, output])) => cleared(output, rows),
        };
        self.feed_forward.forward(
            pass,
            Mat::new(normed, rows, hidden),
            output,
            &mut kept.feed_forward,
            &mut buffers.feed_forward,
        );
        if let Some((norms, [_, output])) = &mut outputs {
            norms.feed_forward.forward(&output.values, normed);
            add(normed, y);
        }
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
            normed,
            d_normed,
            d_output,
            ..
        } = buffers;
        let d_normed = sized(d_normed, count * hidden);
        let (norms, outputs) = (self.output_norms.as_ref(), kept.outputs.as_ref());
        let outputs = norms.zip(outputs);

        let middle = &kept.middle.values;
        self.feed_forward_norm.forward(middle, normed);
        let dy = match outputs {
            None => &*d,
            Some((norms, [_, output])) => {
                let d_output = zeros(d_output, count * hidden);
                let gradients = &mut pass.gradients;
                norms
                    .feed_forward
                    .backward(&output.values, d, d_output, gradients);
                d_output
            }
        };
        self.feed_forward.backward(
            pass,
            Mat::new(normed, count, hidden),
            Mat::new(dy, count, hidden),
            d_normed,
            &mut kept.feed_forward,
            &mut buffers.feed_forward,
        );
        self.feed_forward_norm
            .backward(middle, d_normed, d, &mut pass.gradients);

        let x = &kept.x.values;
        self.attention_norm.forward(x, normed);
        let dy = match outputs {
            None => &*d,
            Some((norms, [output, _])) => {
                let d_output = zeros(d_output, count * hidden);
                let gradients = &mut pass.gradients;
                norms
                    .attention
                    .backward(&output.values, d, d_output, gradients);
                d_output
            }
        };
        self.attention.backward(
            pass,
            Mat::new(normed, count, hidden),
            Mat::new(dy, count, hidden),
            needs_input.then_some(&mut *d_normed),
            &kept.attention,
            &mut buffers.attention,
        );
        if needs_input {
            self.attention_norm
                .backward(x, d_normed, d, &mut pass.gradients);
        }
    }

    /// The matrix of the feed-forward part that has no adapter, where there is one.
    pub(crate) fn router(&self) -> Option<&Panels> {
        self.feed_forward.router()
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
            outputs: config
                .features
                .output_norms
                .then(|| [0; 2].map(|_| KeptRows::new(config.hidden))),
        }
    }

    /// Returns how much memory the forward pass of one row leaves in use, adapters aside.
    pub(crate) fn bytes_per_row(&self) -> usize {
        let Self {
            x,
            attention,
            middle,
            feed_forward,
            outputs,
        } = self;
        let outputs = outputs.iter().flatten().map(KeptRows::bytes_per_row);
        outputs.sum::<usize>()
            + x.bytes_per_row()
            + attention.bytes_per_row()
            + middle.bytes_per_row()
            + feed_forward.bytes_per_row()
    }
}

fn zeros(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.clear();
    sized(buffer, len)
}

fn cleared(rows: &mut KeptRows, count: usize) -> &mut Vec<f32> {
    rows.values.clear();
    rows.resize(count);
    &mut rows.values
}

fn add(from: &[f32], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

fn copy(from: &[f32], to: &mut Vec<f32>) {
    to.clear();
    to.extend_from_slice(from);
}
