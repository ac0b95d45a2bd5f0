//! Experts: many small gated MLPs, of which a router picks a few for each row.
//!
//! ```text
//! p = softmax(x Wr)        w = p of the k largest, made to sum to one where the model does
//! y += Σ_e Wd_e (w_e a_e)  a_e = silu(x Wg_e) ⊙ x Wu_e
//!
//! dz_e = dy Wd_e           dw_e = a_e · dz_e       da_e = w_e dz_e       dx = Σ_e … + dlogits Wr
//! ```
//!
//! The weight multiplies the activation and not the output, so that its gradient comes from products that are
//! needed anyway. Rows of one expert are gathered and computed together; a row's outputs are added in the order
//! of the experts, so its bits depend on itself alone. The router has no adapter. Where the outputs have a bias, it is
//! weighted, too: `y += w_e b_e`. In some models one more expert, which is [`shared`], computes every row.

mod shared;

use rayon::prelude::*;

use super::super::backward::BackwardPass;
use super::super::forward::ForwardPass;
use super::super::linear::{self, Bias, Linear, Seen};
use super::super::load::LayerReader;
use super::super::tensor_table::{LayerTensors, LinearSpec, Names, SiteGroup, TensorKey};
use super::super::workspace::sized;
use crate::config::{Activation, Experts};
use crate::kernels::gemm::{Start, outer, project, project_back};
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::panels::Panels;
use crate::kernels::{gated, softmax};
use crate::{Error, ModelConfig};
use shared::{SharedBuffers, SharedExpert, SharedKept};

const ROUTER: Names = Names::new("mlp.gate", "ffn_gate_inp");
// As gpt-oss, which has a bias, calls it.
const BIASED_ROUTER: Names = Names::new("mlp.router", "ffn_gate_inp");
const GATE: Names = Names::new("mlp.experts.*.gate_proj", "ffn_gate_exps");
pub(crate) const UP: Names = Names::new("mlp.experts.*.up_proj", "ffn_up_exps");
const DOWN: Names = Names::new("mlp.experts.*.down_proj", "ffn_down_exps");

pub(crate) struct Mixture {
    shape: Experts,
    activation: Activation,
    router: Panels,
    router_key: TensorKey,
    router_bias: Option<Bias>,
    experts: Vec<Expert>,
    shared: Option<Box<SharedExpert>>,
}

struct Expert {
    /// Gates and values.
    inputs: [Linear; 2],
    /// Without its bias, which is weighted.
    down: Linear,
    down_bias: Option<Bias>,
}

/// Activations are recomputed.
#[derive(Debug)]
pub(crate) struct MixtureKept {
    numbers_per_row: usize,
    routes: Routes,
    /// Gates, then values, of the rows of each expert in turn. The backward pass turns them into gradients.
    gate_up: Vec<f32>, // rows · k × 2 ffn
    /// Inner activations of the adapters, by expert.
    u_inputs: Vec<Vec<f32>>,
    u_down: Vec<Vec<f32>>,
    shared: SharedKept,
}

#[derive(Debug, Default)]
pub(crate) struct MixtureBuffers {
    logits: Vec<f32>,     // rows × experts
    x: Vec<f32>,          // rows of an expert × hidden
    dy: Vec<f32>,         // rows of an expert × hidden
    output: Vec<f32>,     // rows of an expert × hidden
    activation: Vec<f32>, // rows of an expert × ffn
    weighted: Vec<f32>,   // rows of an expert × ffn
    d_weights: Vec<f32>,  // rows × k
    shared: SharedBuffers,
}

/// Which experts compute which rows, and with which weights.
#[derive(Debug, Default)]
struct Routes {
    per_token: usize,
    /// Experts of each row, ascending.
    chosen: Vec<usize>, // rows × k
    weights: Vec<f32>, // rows × k
    /// Places in `chosen`, by expert, ascending.
    places: Vec<Vec<usize>>,
}

impl Routes {
    /// Picks the experts of all rows from the router's scores. Of equal scores the first counts as larger.
    fn choose(&mut self, logits: &[f32], shape: Experts) {
        let Experts {
            count, per_token, ..
        } = shape;
        self.per_token = per_token;
        self.chosen.clear();
        self.weights.clear();
        self.places.resize_with(count, Vec::new);
        self.places.iter_mut().for_each(Vec::clear);
        let mut order: Vec<usize> = Vec::with_capacity(count);
        for row in logits.chunks_exact(count) {
            order.clear();
            order.extend(0..count);
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let chosen = &mut order[..per_token];
            chosen.sort_unstable();
            let scores: Vec<f32> = chosen.iter().map(|&expert| row[expert]).collect();
            // Probabilities that are made to sum to one are those of a soft-max over the chosen.
            let lse = softmax::log_sum_exp(if shape.normalised { &scores } else { row });
            for (&expert, score) in chosen.iter().zip(scores) {
                self.places[expert].push(self.chosen.len());
                self.chosen.push(expert);
                self.weights.push((score - lse).exp());
            }
        }
    }

    /// The rows of an expert, ascending.
    fn rows(&self, expert: usize) -> Vec<usize> {
        let places = self.places[expert].iter();
        places.map(|place| place / self.per_token).collect()
    }
}

impl Mixture {
    /// Counts the numbers in the buffers of a row, in both directions.
    pub(crate) fn buffer_numbers(config: &ModelConfig, experts: Experts) -> usize {
        let shared = experts.shared;
        let shared = shared.map(|width| SharedExpert::buffer_numbers(config.hidden, width));
        2 * experts.count
            + 3 * config.hidden
            + 2 * experts.ffn
            + experts.per_token
            + shared.unwrap_or(0)
    }

    pub(crate) fn declare(config: &ModelConfig, experts: Experts, tensors: &mut LayerTensors<'_>) {
        let (hidden, width) = (config.hidden, experts.ffn);
        tensors.matrix(router(experts), experts.count, hidden, experts.biases);
        for expert in 0..experts.count {
            for (names, outputs, inputs) in [
                (GATE, width, hidden),
                (UP, width, hidden),
                (DOWN, hidden, width),
            ] {
                let spec = LinearSpec {
                    names,
                    outputs,
                    inputs,
                    has_bias: experts.biases,
                    rotary_heads: None,
                    group: SiteGroup::FeedForward,
                };
                tensors.expert(&spec, expert, experts.count);
            }
        }
        if let Some(width) = experts.shared {
            SharedExpert::declare(config, width, tensors);
        }
    }

    pub(crate) fn load(
        config: &ModelConfig,
        shape: Experts,
        reader: &LayerReader<'_>,
    ) -> Result<Self, Error> {
        let names = router(shape);
        let (router, router_key) = reader.matrix(names)?;
        let expert = |expert: usize| {
            let mut down = reader.expert(DOWN, expert)?;
            Ok(Expert {
                inputs: [reader.expert(GATE, expert)?, reader.expert(UP, expert)?],
                down_bias: down.bias.take(),
                down,
            })
        };
        Ok(Self {
            shape,
            activation: config.features.activation,
            router,
            router_key,
            router_bias: match shape.biases {
                true => Some(reader.bias(names)?),
                false => None,
            },
            experts: (0..shape.count)
                .into_par_iter()
                .map(expert)
                .collect::<Result<_, Error>>()?,
            shared: match shape.shared {
                Some(width) => Some(Box::new(SharedExpert::load(config, width, reader)?)),
                None => None,
            },
        })
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        let experts = self.experts.iter();
        let shared = self.shared.iter();
        experts
            .flat_map(|expert| expert.inputs.iter().chain([&expert.down]))
            .chain(shared.flat_map(|shared| shared.linears()))
            .collect()
    }

    pub(crate) fn router(&self) -> &Panels {
        &self.router
    }

    pub(crate) fn forward(
        &self,
        pass: &ForwardPass<'_>,
        x: Mat<'_>,
        y: &mut [f32],
        kept: &mut MixtureKept,
        buffers: &mut MixtureBuffers,
    ) {
        let (count, hidden, width) = (x.rows(), x.cols(), self.shape.ffn);
        let logits = sized(&mut buffers.logits, count * self.shape.count);
        self.route(x, logits);
        kept.routes.choose(logits, self.shape);
        kept.u_inputs.resize_with(self.shape.count, Vec::new);
        kept.u_down.resize_with(self.shape.count, Vec::new);
        let mut rest = sized(&mut kept.gate_up, count * self.shape.per_token * 2 * width);
        for (index, expert) in self.experts.iter().enumerate() {
            let rows = kept.routes.rows(index);
            let gate_up;
            (gate_up, rest) = rest.split_at_mut(rows.len() * 2 * width);
            if rows.is_empty() {
                continue;
            }
            let those = pass.rows.select(&rows);
            gather(x, &rows, &mut buffers.x);
            linear::forward(
                &expert.inputs.each_ref(),
                Mat::new(&buffers.x, rows.len(), hidden),
                &those,
                gate_up,
                Start::Zero,
                &mut kept.u_inputs[index],
            );
            self.activate(index, &kept.routes, gate_up, buffers);
            let output = sized(&mut buffers.output, rows.len() * hidden);
            linear::forward(
                &[&expert.down],
                Mat::new(&buffers.weighted, rows.len(), width),
                &those,
                output,
                Start::Zero,
                &mut kept.u_down[index],
            );
            if let Some(bias) = &expert.down_bias {
                let places = kept.routes.places[index].iter();
                for (output, &place) in output.chunks_exact_mut(hidden).zip(places) {
                    let weight = kept.routes.weights[place];
                    let numbers = output.iter_mut().zip(&bias.values);
                    numbers.for_each(|(o, b)| *o = weight.mul_add(*b, *o));
                }
            }
            scatter(output, &rows, hidden, y);
        }
        if let Some(shared) = &self.shared {
            shared.forward(pass, x, y, &mut kept.shared, &mut buffers.shared);
        }
    }

    pub(crate) fn backward(
        &self,
        pass: &mut BackwardPass<'_>,
        x: Mat<'_>,
        dy: Mat<'_>,
        dx: &mut [f32],
        kept: &mut MixtureKept,
        buffers: &mut MixtureBuffers,
    ) {
        let (count, hidden, width) = (x.rows(), x.cols(), self.shape.ffn);
        let MixtureKept {
            routes,
            gate_up,
            u_inputs,
            u_down,
            shared: shared_kept,
            ..
        } = kept;
        dx.fill(0.0);
        sized(&mut buffers.d_weights, routes.weights.len());
        let mut rest = &mut gate_up[..];
        for (index, expert) in self.experts.iter().enumerate() {
            let rows = routes.rows(index);
            let gate_up;
            (gate_up, rest) = rest.split_at_mut(rows.len() * 2 * width);
            if rows.is_empty() {
                continue;
            }
            self.activate(index, routes, gate_up, buffers);
            gather(x, &rows, &mut buffers.x);
            gather(dy, &rows, &mut buffers.dy);
            let mut dz = vec![0.0; rows.len() * width];
            let seen = Seen {
                x: Mat::new(&buffers.weighted, rows.len(), width),
                u: &u_down[index],
                dy: Mat::new(&buffers.dy, rows.len(), hidden),
            };
            linear::backward(&[&expert.down], &seen, Some(&mut dz), pass);
            let activation = buffers.activation.chunks_exact(width);
            let places = routes.places[index].iter();
            for ((dz, a), &place) in dz.chunks_exact_mut(width).zip(activation).zip(places) {
                buffers.d_weights[place] = softmax::dot(a, dz);
                let weight = routes.weights[place];
                dz.iter_mut().for_each(|dz| *dz *= weight);
            }
            if let Some(bias) = &expert.down_bias {
                let places = routes.places[index].iter();
                for (dy, &place) in buffers.dy.chunks_exact(hidden).zip(places) {
                    buffers.d_weights[place] += softmax::dot(dy, &bias.values);
                    if let Some(sums) = pass.gradients.tensor(bias.key) {
                        let weight = routes.weights[place];
                        let numbers = sums.iter_mut().zip(dy);
                        numbers.for_each(|(sum, dy)| *sum = weight.mul_add(*dy, *sum));
                    }
                }
            }
            gate_up
                .par_chunks_exact_mut(2 * width)
                .zip(dz.par_chunks_exact(width))
                .for_each(|(gate_up, da)| gated::backward(self.activation, gate_up, da));
            let output = sized(&mut buffers.output, rows.len() * hidden);
            let seen = Seen {
                x: Mat::new(&buffers.x, rows.len(), hidden),
                u: &u_inputs[index],
                dy: Mat::new(gate_up, rows.len(), 2 * width),
            };
            linear::backward(&expert.inputs.each_ref(), &seen, Some(output), pass);
            scatter(output, &rows, hidden, dx);
        }
        if let Some(shared) = &self.shared {
            shared.backward(pass, x, dy, dx, shared_kept, &mut buffers.shared);
        }
        let logits = sized(&mut buffers.logits, count * self.shape.count);
        self.d_logits(x, routes, &buffers.d_weights, logits);
        let d_logits = Mat::new(logits, count, self.shape.count);
        project_back(
            d_logits,
            &self.router,
            MatMut::new(dx, count, hidden),
            Start::Keep,
        );
        if let Some(sums) = pass.gradients.tensor(self.router_key) {
            outer(d_logits, x, MatMut::new(sums, self.shape.count, hidden));
        }
        let bias = self.router_bias.as_ref();
        if let Some(sums) = bias.and_then(|bias| pass.gradients.tensor(bias.key)) {
            for row in 0..count {
                let numbers = sums.iter_mut().zip(d_logits.row(row));
                numbers.for_each(|(sum, d)| *sum += d);
            }
        }
    }

    fn route(&self, x: Mat<'_>, logits: &mut [f32]) {
        let start = match &self.router_bias {
            None => Start::Zero,
            Some(bias) => {
                let rows = logits.chunks_exact_mut(self.shape.count);
                rows.for_each(|row| row.copy_from_slice(&bias.values));
                Start::Keep
            }
        };
        project(
            x,
            &[&self.router],
            MatMut::new(logits, x.rows(), self.shape.count),
            start,
        );
    }

    /// Computes the activations of an expert's rows, and times their weights.
    fn activate(
        &self,
        expert: usize,
        routes: &Routes,
        gate_up: &[f32],
        buffers: &mut MixtureBuffers,
    ) {
        let (width, places) = (self.shape.ffn, &routes.places[expert]);
        let activation = sized(&mut buffers.activation, places.len() * width);
        let weighted = sized(&mut buffers.weighted, places.len() * width);
        activation
            .par_chunks_exact_mut(width)
            .zip(weighted.par_chunks_exact_mut(width))
            .zip(gate_up.par_chunks_exact(2 * width).zip(places))
            .for_each(|((a, z), (gate_up, &place))| {
                gated::forward(self.activation, gate_up, a);
                let weight = routes.weights[place];
                z.iter_mut().zip(a).for_each(|(z, a)| *z = weight * *a);
            });
    }

    /// Turns gradients of weights into those of the router's scores.
    fn d_logits(&self, x: Mat<'_>, routes: &Routes, d_weights: &[f32], logits: &mut [f32]) {
        let (count, k) = (self.shape.count, self.shape.per_token);
        if self.shape.normalised {
            logits.fill(0.0);
        } else {
            // All probabilities take part.
            self.route(x, logits);
            for row in logits.chunks_exact_mut(count) {
                let lse = softmax::log_sum_exp(row);
                softmax::score_gradient(row, lse, 1.0);
            }
        }
        let rows = logits.chunks_exact_mut(count);
        let chosen = routes.chosen.chunks_exact(k);
        let weights = routes.weights.chunks_exact(k);
        for (((row, chosen), weights), d_weights) in
            rows.zip(chosen).zip(weights).zip(d_weights.chunks_exact(k))
        {
            let mean = softmax::dot(weights, d_weights);
            if !self.shape.normalised {
                row.iter_mut().for_each(|p| *p *= -mean);
            }
            for ((&expert, &weight), &d_weight) in chosen.iter().zip(weights).zip(d_weights) {
                if self.shape.normalised {
                    row[expert] = weight * (d_weight - mean);
                } else {
                    row[expert] += weight * d_weight;
                }
            }
        }
    }
}

impl MixtureKept {
    pub(crate) fn new(experts: Option<Experts>) -> Self {
        let numbers = |experts: Experts| experts.per_token * (2 * experts.ffn + 4);
        Self {
            numbers_per_row: experts.map_or(0, numbers),
            routes: Routes::default(),
            gate_up: Vec::new(),
            u_inputs: Vec::new(),
            u_down: Vec::new(),
            shared: SharedKept::new(experts),
        }
    }

    /// Adapters aside, whose rank decides what they keep.
    pub(crate) fn bytes_per_row(&self) -> usize {
        self.numbers_per_row * size_of::<f32>() + self.shared.bytes_per_row()
    }
}

fn router(experts: Experts) -> Names {
    match experts.biases {
        true => BIASED_ROUTER,
        false => ROUTER,
    }
}

fn gather(x: Mat<'_>, rows: &[usize], to: &mut Vec<f32>) {
    to.clear();
    rows.iter()
        .for_each(|&row| to.extend_from_slice(x.row(row)));
}

fn scatter(from: &[f32], rows: &[usize], width: usize, to: &mut [f32]) {
    for (&row, from) in rows.iter().zip(from.chunks_exact(width)) {
        let to = &mut to[row * width..][..width];
        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_scores_are_chosen_and_the_first_of_equal_ones() {
        let shape = |normalised| Experts {
            count: 4,
            per_token: 2,
            ffn: 1,
            normalised,
            biases: false,
            shared: None,
        };
        let logits = [0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0];
        let mut routes = Routes::default();
        routes.choose(&logits, shape(true));
        assert_eq!(routes.chosen, [1, 3, 0, 1]);
        assert_eq!(routes.weights, [0.5; 4]);
        assert_eq!(routes.places, [vec![2], vec![0, 3], vec![], vec![1]]);
        assert_eq!(routes.rows(1), [0, 1]);
        routes.choose(&logits, shape(false));
        assert!((routes.weights[2] - 0.25).abs() < 1e-6);
        assert!(routes.weights[..2].iter().sum::<f32>() < 1.0);
    }
}
