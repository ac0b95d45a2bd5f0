//! Attention without a soft-max: a state for each head, changed by the [gated delta rule](crate::kernels::delta).
//!
//! ```text
//! [p, z, b, a] = x [Wp; Wz; Wb; Wa]          [q, k, v] = silu(conv(p)), each channel by itself
//! q ← q / |q| / √d    k ← k / |k|            β = σ(b)        γ = exp(−e^A softplus(a + t))
//! o = delta rule      y += (norm(o) ⊙ silu(z)) Wo
//! ```
//!
//! Each key head serves `value heads / key heads` value heads. The state, and the last inputs of the convolution, are all
//! that later tokens need.

mod backward;

use std::cell::RefCell;
use std::sync::Mutex;

use rayon::prelude::*;

use super::super::backward::BackwardPass;
use super::super::forward::ForwardPass;
use super::super::linear::{self, Bias, Linear, Seen};
use super::super::load::LayerReader;
use super::super::norm::Norm;
use super::super::rows::{Rows, Span, rows_per_task};
use super::super::tensor_table::{LayerTensors, LinearSpec, Names, NormSpec, SiteGroup};
use super::super::workspace::{KeptRows, sized};
use super::Past;
use crate::config::DeltaRule;
use crate::kernels::delta::{self, DeltaScratch, DeltaToken};
use crate::kernels::exp::exp;
use crate::kernels::gemm::Start;
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::shared::for_each_part;
use crate::kernels::softmax::dot;
use crate::{Error, ModelConfig};

const QKV: Names = Names::new("linear_attn.in_proj_qkv", "attn_qkv");
const GATE: Names = Names::new("linear_attn.in_proj_z", "attn_gate");
const BETA: Names = Names::new("linear_attn.in_proj_b", "ssm_beta");
const DECAY: Names = Names::new("linear_attn.in_proj_a", "ssm_alpha");
const OUTPUT: Names = Names::new("linear_attn.out_proj", "ssm_out");
const CONVOLUTION: Names = Names::new("linear_attn.conv1d", "ssm_conv1d");
const STEP_BIAS: Names = Names::new("linear_attn.dt_bias", "ssm_dt.bias");
const RATE: Names = Names::new("linear_attn.A_log", "ssm_a");
const NORM: Names = Names::new("linear_attn.norm", "ssm_norm");

/// Added to the square of a length before its root.
const LENGTH_EPS: f32 = 1e-6;

pub(crate) struct DeltaAttention {
    /// Which one of the model's, by which caches find its state.
    index: usize,
    shape: DeltaRule,
    /// Of queries, keys and values together, of gates, of `b` and of `a`.
    inputs: Vec<Linear>,
    convolution: Bias, // channels × kernel
    step_bias: Bias,
    rate: Bias,
    norm: Norm,
    output: Linear,
}

/// What goes into the convolution and the rule is computed again.
#[derive(Debug)]
pub(crate) struct DeltaAttentionKept {
    /// Outputs of the input projections.
    mixed: KeptRows, // rows × (channels + values + 2 value heads)
    /// Outputs of the rule.
    core: KeptRows, // rows × values
    u_inputs: Vec<f32>,
    u_output: Vec<f32>,
}

#[derive(Debug, Default)]
pub(crate) struct DeltaAttentionBuffers {
    conv: Vec<f32>,    // rows × channels: before the activation
    active: Vec<f32>,  // rows × (channels + 2 value heads): q and k normalised, v, γ, β
    gated: Vec<f32>,   // rows × values
    d_gated: Vec<f32>, // rows × values
    d_core: Vec<f32>,  // rows × values
    d_mixed: Vec<f32>, // rows × (channels + values + 2 value heads)
}

thread_local! {
    static SCRATCH: RefCell<(DeltaScratch, Vec<f32>, Vec<f32>)> = RefCell::default();
}

impl DeltaAttention {
    pub(crate) fn buffer_numbers(shape: DeltaRule) -> usize {
        3 * shape.channels() + 5 * shape.values() + 4 * shape.value_heads
    }

    pub(crate) fn declare(config: &ModelConfig, shape: DeltaRule, tensors: &mut LayerTensors<'_>) {
        let (hidden, values, heads) = (config.hidden, shape.values(), shape.value_heads);
        for (names, outputs, inputs) in [
            (QKV, shape.channels(), hidden),
            (GATE, values, hidden),
            (BETA, heads, hidden),
            (DECAY, heads, hidden),
            (OUTPUT, hidden, values),
        ] {
            tensors.linear(&LinearSpec {
                names,
                outputs,
                inputs,
                has_bias: false,
                rotary_heads: None,
                group: SiteGroup::Attention,
            });
        }
        tensors.kernel(CONVOLUTION, vec![shape.channels(), 1, shape.kernel]);
        tensors.vector(STEP_BIAS, heads);
        tensors.vector(RATE, heads);
        tensors.optional_norm(&NormSpec {
            names: NORM,
            width: shape.value_dim,
        });
    }

    pub(crate) fn load(
        config: &ModelConfig,
        shape: DeltaRule,
        reader: &LayerReader<'_>,
    ) -> Result<Self, Error> {
        Ok(Self {
            index: config.delta_layers(reader.layer),
            shape,
            inputs: [QKV, GATE, BETA, DECAY]
                .into_iter()
                .map(|names| reader.linear(names))
                .collect::<Result<_, _>>()?,
            convolution: reader.kernel(CONVOLUTION)?,
            step_bias: reader.vector(STEP_BIAS)?,
            rate: reader.vector(RATE)?,
            norm: reader.plain_norm(NORM)?,
            output: reader.linear(OUTPUT)?,
        })
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        self.inputs.iter().chain([&self.output]).collect()
    }

    pub(crate) fn forward(
        &self,
        pass: &mut ForwardPass<'_>,
        x: Mat<'_>,
        y: &mut [f32],
        kept: &mut DeltaAttentionKept,
        buffers: &mut DeltaAttentionBuffers,
    ) {
        let (count, values) = (x.rows(), self.shape.values());
        linear::forward(
            &self.inputs.iter().collect::<Vec<_>>(),
            x,
            pass.rows,
            kept.mixed.resize(count),
            Start::Zero,
            &mut kept.u_inputs,
        );
        let tails = self.tails(pass.rows, &pass.past);
        self.convolve(pass.rows, &kept.mixed, &tails, &mut buffers.conv);
        self.activate(&kept.mixed, &buffers.conv, &mut buffers.active);
        self.run(pass, kept, &buffers.active);
        self.keep_tails(pass, &kept.mixed, tails);
        self.gate(kept, &mut buffers.gated);
        linear::forward(
            &[&self.output],
            Mat::new(&buffers.gated, count, values),
            pass.rows,
            y,
            Start::Keep,
            &mut kept.u_output,
        );
    }

    /// The inputs of the convolution that come before each sequence's rows.
    fn tails(&self, rows: &Rows<'_>, past: &Past<'_>) -> Vec<Vec<f32>> {
        let length = (self.shape.kernel - 1) * self.shape.channels();
        let sequences = rows.spans().iter().enumerate();
        sequences
            .map(|(sequence, _)| match past {
                Past::Rows => vec![0.0; length],
                Past::Caches(caches) => {
                    let tail = caches[sequence].delta_tail(self.index);
                    if tail.is_empty() {
                        vec![0.0; length]
                    } else {
                        tail.to_vec()
                    }
                }
            })
            .collect()
    }

    fn keep_tails(&self, pass: &mut ForwardPass<'_>, mixed: &KeptRows, tails: Vec<Vec<f32>>) {
        let (channels, length) = (self.shape.channels(), self.shape.kernel - 1);
        let Past::Caches(caches) = &mut pass.past else {
            return;
        };
        let mixed = mixed.as_mat();
        let sequences = pass.rows.spans().iter().zip(caches.iter_mut()).zip(tails);
        for ((span, cache), mut tail) in sequences {
            for row in span.rows.clone() {
                tail.extend_from_slice(&mixed.row(row)[..channels]);
            }
            tail.drain(..tail.len() - length * channels);
            cache.set_delta_tail(self.index, tail);
        }
    }

    /// The input of the convolution `back` rows before a row of a sequence.
    fn input<'a>(
        &self,
        mixed: Mat<'a>,
        tail: &'a [f32],
        span: &Span,
        row: usize,
        back: usize,
    ) -> &'a [f32] {
        let channels = self.shape.channels();
        if row >= span.rows.start + back {
            &mixed.row(row - back)[..channels]
        } else {
            let place = self.shape.kernel - 1 + row - span.rows.start - back;
            &tail[place * channels..][..channels]
        }
    }

    /// Convolves the inputs of all sequences.
    fn convolve(&self, rows: &Rows<'_>, mixed: &KeptRows, tails: &[Vec<f32>], conv: &mut Vec<f32>) {
        let (channels, kernel) = (self.shape.channels(), self.shape.kernel);
        let owners = owners(rows);
        let mixed = mixed.as_mat();
        sized(conv, rows.len() * channels)
            .par_chunks_exact_mut(channels)
            .with_min_len(rows_per_task(4 * channels))
            .enumerate()
            .for_each(|(row, to)| {
                let (span, tail) = (&rows.spans()[owners[row]], &tails[owners[row]]);
                to.fill(0.0);
                for back in (0..kernel).rev() {
                    let from = self.input(mixed, tail, span, row, back);
                    let weights = self.convolution.values[kernel - 1 - back..]
                        .iter()
                        .step_by(kernel);
                    for ((to, &x), &w) in to.iter_mut().zip(from).zip(weights) {
                        *to = w.mul_add(x, *to);
                    }
                }
            });
    }

    /// Computes what the rule reads: queries, keys, values, then `γ` and `β` of all value heads.
    fn activate(&self, mixed: &KeptRows, conv: &[f32], active: &mut Vec<f32>) {
        let shape = self.shape;
        let (channels, heads) = (shape.channels(), shape.value_heads);
        let (keys, scale) = (shape.keys(), self.query_scale());
        sized(active, conv.len() / channels * (channels + 2 * heads))
            .par_chunks_exact_mut(channels + 2 * heads)
            .with_min_len(rows_per_task(8 * channels))
            .zip(conv.par_chunks_exact(channels))
            .zip(mixed.values.par_chunks_exact(mixed.width()))
            .for_each(|((to, conv), mixed)| {
                let (qkv, gates) = to.split_at_mut(channels);
                for (to, &x) in qkv.iter_mut().zip(conv) {
                    *to = silu(x);
                }
                for (part, scale) in [(0..keys, scale), (keys..2 * keys, 1.0)] {
                    for head in qkv[part].chunks_exact_mut(shape.key_dim) {
                        let factor = scale * inverse_length(head);
                        head.iter_mut().for_each(|x| *x *= factor);
                    }
                }
                let (b, a) = mixed[channels + shape.values()..].split_at(heads);
                let (gamma, beta) = gates.split_at_mut(heads);
                for head in 0..heads {
                    gamma[head] = self.log_decay(head, a[head]).exp();
                    beta[head] = sigmoid(b[head]);
                }
            });
    }

    fn query_scale(&self) -> f32 {
        1.0 / (self.shape.key_dim as f32).sqrt()
    }

    fn log_decay(&self, head: usize, a: f32) -> f32 {
        -self.rate.values[head].exp() * softplus(a + self.step_bias.values[head])
    }

    /// What a row brings to a value head.
    fn token<'a>(&self, active: &'a [f32], row: usize, head: usize) -> DeltaToken<'a> {
        let shape = self.shape;
        let (channels, heads) = (shape.channels(), shape.value_heads);
        let row = &active[row * (channels + 2 * heads)..][..channels + 2 * heads];
        let key = head / shape.shared() * shape.key_dim;
        DeltaToken {
            q: &row[key..][..shape.key_dim],
            k: &row[shape.keys() + key..][..shape.key_dim],
            v: &row[2 * shape.keys() + head * shape.value_dim..][..shape.value_dim],
            gamma: row[channels + head],
            beta: row[channels + heads + head],
        }
    }

    /// Runs the rule over all sequences, each value head of each sequence a task.
    fn run(&self, pass: &mut ForwardPass<'_>, kept: &mut DeltaAttentionKept, active: &[f32]) {
        let shape = self.shape;
        let (rows, size) = (pass.rows, shape.key_dim * shape.value_dim);
        let mut states: Vec<Vec<f32>> = match &mut pass.past {
            Past::Rows => rows.spans().iter().map(|_| Vec::new()).collect(),
            Past::Caches(caches) => caches
                .iter_mut()
                .map(|cache| cache.take_delta_state(self.index))
                .collect(),
        };
        for state in &mut states {
            state.resize(shape.value_heads * size, 0.0);
        }
        let slots: Vec<Vec<Mutex<&mut [f32]>>> = states
            .iter_mut()
            .map(|state| state.chunks_exact_mut(size).map(Mutex::new).collect())
            .collect();
        let columns = |head: usize| {
            let first = head * shape.value_dim;
            std::iter::once(first..first + shape.value_dim).collect::<Vec<_>>()
        };
        let groups: Vec<_> = (0..shape.value_heads).map(columns).collect();
        let ranges: Vec<_> = rows.spans().iter().map(|span| span.rows.clone()).collect();
        let core = MatMut::new(kept.core.resize(rows.len()), rows.len(), shape.values());
        for_each_part(core, &ranges, &groups, true, |sequence, head, mut part| {
            let mut state = slots[sequence][head].lock().expect("no task panics");
            SCRATCH.with_borrow_mut(|(_, delta, o)| {
                sized(delta, shape.value_dim);
                sized(o, shape.value_dim);
                for (at, row) in ranges[sequence].clone().enumerate() {
                    delta::step(&mut state, self.token(active, row, head), delta, o);
                    part.write(at, 0, 0, o);
                }
            });
        });
        drop(slots);
        if let Past::Caches(caches) = &mut pass.past {
            for (cache, state) in caches.iter_mut().zip(states) {
                cache.set_delta_state(self.index, state);
            }
        }
    }

    /// Normalises the rule's outputs, head by head, and gates them.
    fn gate(&self, kept: &DeltaAttentionKept, gated: &mut Vec<f32>) {
        let (channels, values) = (self.shape.channels(), self.shape.values());
        sized(gated, kept.core.values.len())
            .par_chunks_exact_mut(values)
            .with_min_len(rows_per_task(8 * values))
            .zip(kept.core.values.par_chunks_exact(values))
            .zip(kept.mixed.values.par_chunks_exact(kept.mixed.width()))
            .for_each(|((to, core), mixed)| {
                let heads = to.chunks_exact_mut(self.shape.value_dim);
                for (to, core) in heads.zip(core.chunks_exact(self.shape.value_dim)) {
                    self.norm.forward_row(core, to);
                }
                for (to, &z) in to.iter_mut().zip(&mixed[channels..]) {
                    *to *= silu(z);
                }
            });
    }

    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        dx: Option<&mut [f32]>,
        kept: &DeltaAttentionKept,
        buffers: &mut DeltaAttentionBuffers,
    ) {
        let (count, values) = (x.rows(), self.shape.values());
        self.gate(kept, &mut buffers.gated);
        let d_gated = sized(&mut buffers.d_gated, count * values);
        let seen = Seen {
            x: Mat::new(&buffers.gated, count, values),
            u: &kept.u_output,
            dy,
        };
        linear::backward(&[&self.output], &seen, Some(d_gated), pass);

        let tails = self.tails(pass.rows, &Past::Rows);
        self.convolve(pass.rows, &kept.mixed, &tails, &mut buffers.conv);
        self.activate(&kept.mixed, &buffers.conv, &mut buffers.active);
        sized(&mut buffers.d_mixed, count * kept.mixed.width());
        self.gate_backward(kept, buffers, &mut pass.gradients);
        self.run_backward(pass.rows, buffers);
        self.activate_backward(kept, buffers, &mut pass.gradients);
        self.convolve_backward(pass.rows, kept, buffers, &mut pass.gradients);

        let inputs: Vec<&Linear> = self.inputs.iter().collect();
        let seen = Seen {
            x,
            u: &kept.u_inputs,
            dy: Mat::new(&buffers.d_mixed, count, kept.mixed.width()),
        };
        linear::backward(&inputs, &seen, dx, pass);
    }
}

impl DeltaAttentionKept {
    pub(crate) fn new(shape: Option<DeltaRule>) -> Self {
        let (mixed, core) = shape.map_or((0, 0), |shape| {
            let values = shape.values();
            (shape.channels() + values + 2 * shape.value_heads, values)
        });
        Self {
            mixed: KeptRows::new(mixed),
            core: KeptRows::new(core),
            u_inputs: Vec::new(),
            u_output: Vec::new(),
        }
    }

    pub(crate) fn bytes_per_row(&self) -> usize {
        self.mixed.bytes_per_row() + self.core.bytes_per_row()
    }
}

/// The sequence that each row belongs to.
fn owners(rows: &Rows<'_>) -> Vec<usize> {
    let spans = rows.spans().iter().enumerate();
    spans
        .flat_map(|(index, span)| std::iter::repeat_n(index, span.rows.len()))
        .collect()
}

fn inverse_length(x: &[f32]) -> f32 {
    1.0 / (dot(x, x) + LENGTH_EPS).sqrt()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

fn silu_slope(x: f32) -> f32 {
    let sigma = sigmoid(x);
    sigma * x.mul_add(1.0 - sigma, 1.0)
}

fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
