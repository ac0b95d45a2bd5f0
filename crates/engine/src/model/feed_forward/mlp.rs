//! The gated MLP of dense models.
//!
//! ```text
//! a = silu(x Wg) ⊙ x Wu        y += a Wd
//! da = dy Wd                   dg, du = swiglu'(da)        dx = [dg, du] [Wg; Wu]
//! ```
//!
//! Some models have another [activation](Activation), or gates and values in one matrix.

use rayon::prelude::*;

use crate::config::Activation;
use crate::kernels::gated;
use crate::kernels::gemm::Start;
use crate::kernels::matrix::Mat;
use crate::model::backward::BackwardPass;
use crate::model::forward::ForwardPass;
use crate::model::linear::{self, Linear, Seen};
use crate::model::load::LayerReader;
use crate::model::rows::rows_per_task;
use crate::model::tensor_table::{LayerTensors, LinearSpec, Names, SiteGroup};
use crate::model::workspace::{KeptRows, sized};
use crate::{Error, ModelConfig};

const GATE: Names = Names::new("mlp.gate_proj", "ffn_gate");
const UP: Names = Names::new("mlp.up_proj", "ffn_up");
const DOWN: Names = Names::new("mlp.down_proj", "ffn_down");
const FUSED: Names = Names::new("mlp.gate_up_proj", "ffn_up");

pub(crate) struct Mlp {
    width: usize,
    activation: Activation,
    /// Gates and values, or both in one.
    inputs: Vec<Linear>,
    down: Linear,
}

/// The activation is recomputed.
#[derive(Debug)]
pub(crate) struct MlpKept {
    /// Gates, then values. The backward pass turns them into their gradients.
    gate_up: KeptRows, // rows × 2 width
    /// Inner activations of the adapters.
    u_gate_up: Vec<f32>,
    u_down: Vec<f32>,
}

#[derive(Debug, Default)]
pub(crate) struct MlpBuffers {
    activation: Vec<f32>,   // rows × width
    d_activation: Vec<f32>, // rows × width
}

impl Mlp {
    /// Counts the numbers in the buffers of a row, in both directions.
    pub(crate) fn buffer_numbers(config: &ModelConfig) -> usize {
        2 * config.ffn
    }

    pub(crate) fn declare(config: &ModelConfig, tensors: &mut LayerTensors<'_>) {
        let (hidden, width) = (config.hidden, config.ffn);
        let inputs: &[_] = match config.features.fused_projections {
            true => &[(FUSED, 2 * width, hidden)],
            false => &[(GATE, width, hidden), (UP, width, hidden)],
        };
        for &(names, outputs, inputs) in inputs.iter().chain(&[(DOWN, hidden, width)]) {
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

    pub(crate) fn load(config: &ModelConfig, reader: &LayerReader<'_>) -> Result<Self, Error> {
        let names: &[Names] = match config.features.fused_projections {
            true => &[FUSED],
            false => &[GATE, UP],
        };
        Ok(Self {
            width: config.ffn,
            activation: config.features.activation,
            inputs: names
                .iter()
                .map(|&names| reader.linear(names))
                .collect::<Result<_, _>>()?,
            down: reader.linear(DOWN)?,
        })
    }

    /// The matrix that stands for the others.
    pub(crate) fn probe(config: &ModelConfig) -> Names {
        match config.features.fused_projections {
            true => FUSED,
            false => UP,
        }
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        self.inputs.iter().chain([&self.down]).collect()
    }

    pub(crate) fn forward(
        &self,
        pass: &ForwardPass<'_>,
        x: Mat<'_>,
        y: &mut [f32],
        kept: &mut MlpKept,
        buffers: &mut MlpBuffers,
    ) {
        linear::forward(
            &self.inputs.iter().collect::<Vec<_>>(),
            x,
            pass.rows,
            kept.gate_up.resize(x.rows()),
            Start::Zero,
            &mut kept.u_gate_up,
        );
        self.activate(kept, &mut buffers.activation);
        linear::forward(
            &[&self.down],
            Mat::new(&buffers.activation, x.rows(), self.width),
            pass.rows,
            y,
            Start::Keep,
            &mut kept.u_down,
        );
    }

    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        dx: &mut [f32],
        kept: &mut MlpKept,
        buffers: &mut MlpBuffers,
    ) {
        let (count, width) = (x.rows(), self.width);
        self.activate(kept, &mut buffers.activation);
        let seen = Seen {
            x: Mat::new(&buffers.activation, count, width),
            u: &kept.u_down,
            dy,
        };
        let da = sized(&mut buffers.d_activation, count * width);
        linear::backward(&[&self.down], &seen, Some(da), pass);
        kept.gate_up
            .values
            .par_chunks_exact_mut(2 * width)
            .with_min_len(rows_per_task(4 * width))
            .zip(buffers.d_activation.par_chunks_exact(width))
            .for_each(|(gate_up, da)| gated::backward(self.activation, gate_up, da));

        let seen = Seen {
            x,
            u: &kept.u_gate_up,
            dy: kept.gate_up.as_mat(),
        };
        let inputs: Vec<&Linear> = self.inputs.iter().collect();
        linear::backward(&inputs, &seen, Some(dx), pass);
    }

    fn activate(&self, kept: &MlpKept, activation: &mut Vec<f32>) {
        let gate_up = kept.gate_up.as_mat();
        sized(activation, gate_up.rows() * self.width)
            .par_chunks_exact_mut(self.width)
            .with_min_len(rows_per_task(4 * self.width))
            .zip(kept.gate_up.values.par_chunks_exact(2 * self.width))
            .for_each(|(a, gate_up)| gated::forward(self.activation, gate_up, a));
    }
}

impl MlpKept {
    pub(crate) fn new(width: usize) -> Self {
        Self {
            gate_up: KeptRows::new(2 * width),
            u_gate_up: Vec::new(),
            u_down: Vec::new(),
        }
    }

    /// Adapters aside, whose rank decides what they keep.
    pub(crate) fn bytes_per_row(&self) -> usize {
        let Self {
            gate_up,
            u_gate_up: _,
            u_down: _,
        } = self;
        gate_up.bytes_per_row()
    }
}
