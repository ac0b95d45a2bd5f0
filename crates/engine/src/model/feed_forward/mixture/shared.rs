//! The expert that computes every row, beside those that a router picks.
//!
//! ```text
//! w = σ(x Ws)     y += Wd (w a)     a = silu(x Wg) ⊙ x Wu
//! ```
//!
//! As with the others, the weight multiplies the activation. Its score is a linear layer of one output, with an
//! adapter as any other.

use rayon::prelude::*;

use crate::config::{Activation, Experts};
use crate::kernels::exp::exp;
use crate::kernels::gated;
use crate::kernels::gemm::Start;
use crate::kernels::matrix::Mat;
use crate::kernels::softmax;
use crate::model::backward::BackwardPass;
use crate::model::forward::ForwardPass;
use crate::model::linear::{self, Linear, Seen};
use crate::model::load::LayerReader;
use crate::model::rows::rows_per_task;
use crate::model::tensor_table::{LayerTensors, LinearSpec, Names, SiteGroup};
use crate::model::workspace::{KeptRows, sized};
use crate::{Error, ModelConfig};

const GATE: Names = Names::new("mlp.shared_expert.gate_proj", "ffn_gate_shexp");
const UP: Names = Names::new("mlp.shared_expert.up_proj", "ffn_up_shexp");
const DOWN: Names = Names::new("mlp.shared_expert.down_proj", "ffn_down_shexp");
const SCORE: Names = Names::new("mlp.shared_expert_gate", "ffn_gate_inp_shexp");

pub(crate) struct SharedExpert {
    width: usize,
    activation: Activation,
    /// Gates, values, and the score.
    inputs: [Linear; 3],
    down: Linear,
}

/// The activation is recomputed.
#[derive(Debug)]
pub(crate) struct SharedKept {
    /// Gates, values and score. The backward pass turns them into their gradients.
    mixed: KeptRows, // rows × (2 width + 1)
    u_inputs: Vec<f32>,
    u_down: Vec<f32>,
}

#[derive(Debug, Default)]
pub(crate) struct SharedBuffers {
    activation: Vec<f32>,   // rows × width
    weighted: Vec<f32>,     // rows × width
    d_activation: Vec<f32>, // rows × width
    dx: Vec<f32>,           // rows × hidden
}

impl SharedExpert {
    /// Counts the numbers in the buffers of a row, in both directions.
    pub(crate) fn buffer_numbers(hidden: usize, width: usize) -> usize {
        3 * width + hidden
    }

    pub(crate) fn declare(config: &ModelConfig, width: usize, tensors: &mut LayerTensors<'_>) {
        let hidden = config.hidden;
        for (names, outputs, inputs) in [
            (GATE, width, hidden),
            (UP, width, hidden),
            (SCORE, 1, hidden),
            (DOWN, hidden, width),
        ] {
            tensors.linear(&LinearSpec {
                names,
                outputs,
                inputs,
                has_bias: false,
                rotary_heads: None,
                group: SiteGroup::FeedForward,
            });
        }
    }

    pub(crate) fn load(
        config: &ModelConfig,
        width: usize,
        reader: &LayerReader<'_>,
    ) -> Result<Self, Error> {
        Ok(Self {
            width,
            activation: config.features.activation,
            inputs: [
                reader.linear(GATE)?,
                reader.linear(UP)?,
                reader.linear(SCORE)?,
            ],
            down: reader.linear(DOWN)?,
        })
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.inputs.iter().chain([&self.down])
    }

    /// Adds its outputs to `y`.
    pub(crate) fn forward(
        &self,
        pass: &ForwardPass<'_>,
        x: Mat<'_>,
        y: &mut [f32],
        kept: &mut SharedKept,
        buffers: &mut SharedBuffers,
    ) {
        linear::forward(
            &self.inputs.each_ref(),
            x,
            pass.rows,
            kept.mixed.resize(x.rows()),
            Start::Zero,
            &mut kept.u_inputs,
        );
        self.activate(kept, buffers);
        linear::forward(
            &[&self.down],
            Mat::new(&buffers.weighted, x.rows(), self.width),
            pass.rows,
            y,
            Start::Keep,
            &mut kept.u_down,
        );
    }

    /// Adds the gradient of its input to `dx`.
    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        dx: &mut [f32],
        kept: &mut SharedKept,
        buffers: &mut SharedBuffers,
    ) {
        let (count, width) = (x.rows(), self.width);
        self.activate(kept, buffers);
        let dz = sized(&mut buffers.d_activation, count * width);
        let seen = Seen {
            x: Mat::new(&buffers.weighted, count, width),
            u: &kept.u_down,
            dy,
        };
        linear::backward(&[&self.down], &seen, Some(dz), pass);
        kept.mixed
            .values
            .par_chunks_exact_mut(2 * width + 1)
            .with_min_len(rows_per_task(4 * width))
            .zip(buffers.d_activation.par_chunks_exact_mut(width))
            .zip(buffers.activation.par_chunks_exact(width))
            .for_each(|((mixed, dz), a)| {
                let (gate_up, score) = mixed.split_at_mut(2 * width);
                let weight = sigmoid(score[0]);
                score[0] = softmax::dot(a, dz) * weight * (1.0 - weight);
                dz.iter_mut().for_each(|dz| *dz *= weight);
                gated::backward(self.activation, gate_up, dz);
            });
        let d_input = sized(&mut buffers.dx, count * x.cols());
        let seen = Seen {
            x,
            u: &kept.u_inputs,
            dy: kept.mixed.as_mat(),
        };
        linear::backward(&self.inputs.each_ref(), &seen, Some(d_input), pass);
        dx.iter_mut().zip(d_input).for_each(|(dx, d)| *dx += *d);
    }

    /// Computes the activations of all rows, and times their weights.
    fn activate(&self, kept: &SharedKept, buffers: &mut SharedBuffers) {
        let (count, width) = (kept.mixed.as_mat().rows(), self.width);
        let activation = sized(&mut buffers.activation, count * width);
        let weighted = sized(&mut buffers.weighted, count * width);
        activation
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(4 * width))
            .zip(weighted.par_chunks_exact_mut(width))
            .zip(kept.mixed.values.par_chunks_exact(2 * width + 1))
            .for_each(|((a, z), mixed)| {
                let (gate_up, score) = mixed.split_at(2 * width);
                gated::forward(self.activation, gate_up, a);
                let weight = sigmoid(score[0]);
                z.iter_mut().zip(a).for_each(|(z, a)| *z = weight * *a);
            });
    }
}

impl SharedKept {
    pub(crate) fn new(experts: Option<Experts>) -> Self {
        let width = experts.and_then(|experts| experts.shared);
        Self {
            mixed: KeptRows::new(width.map_or(0, |width| 2 * width + 1)),
            u_inputs: Vec::new(),
            u_down: Vec::new(),
        }
    }

    /// Adapters aside, whose rank decides what they keep.
    pub(crate) fn bytes_per_row(&self) -> usize {
        self.mixed.bytes_per_row()
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}
