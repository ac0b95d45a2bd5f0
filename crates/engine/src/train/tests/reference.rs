//! The whole model once more, naively and in `f64`, as the oracle of the gradient tests.

use std::collections::BTreeMap;

use tinkrs_types::Datum;

use crate::ModelConfig;
use crate::config::{Activation, DeltaRule, Experts, LayerKind};
use crate::train::TrainingRun;
use crate::weights::{WeightSource, tensor_shapes};

/// Weights by name, adapters among them.
pub(super) struct Reference {
    config: ModelConfig,
    weights: BTreeMap<String, Vec<f64>>,
    lora: Option<(usize, f64)>,
}

impl Reference {
    /// Takes the weights of a source, and whatever the run trains on top.
    pub(super) fn new(source: &dyn WeightSource, run: &TrainingRun) -> Self {
        let config = source.config().clone();
        let widen = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let mut weights: BTreeMap<String, Vec<f64>> = tensor_shapes(&config)
            .into_iter()
            .map(|(name, _)| (name.clone(), widen(&source.tensor(&name).unwrap().to_f32())))
            .collect();
        for (tensor, values) in run.slots.tensors.iter().zip(&run.values) {
            weights.insert(tensor.name.clone(), widen(values));
        }
        let lora = run
            .adapter()
            .map(|adapter| (adapter.rank(), f64::from(adapter.alpha())));
        Self {
            config,
            weights,
            lora,
        }
    }

    /// Central difference of the loss by one element.
    pub(super) fn derivative(&mut self, name: &str, index: usize, data: &[Datum]) -> f64 {
        let step = 1e-5;
        let original = self.weights[name][index];
        self.set(name, index, original + step);
        let above = self.loss(data);
        self.set(name, index, original - step);
        let below = self.loss(data);
        self.set(name, index, original);
        (above - below) / (2.0 * step)
    }

    fn set(&mut self, name: &str, index: usize, value: f64) {
        self.weights.get_mut(name).unwrap()[index] = value;
    }

    /// Weighted cross-entropy of all datums.
    pub(super) fn loss(&self, data: &[Datum]) -> f64 {
        data.iter().map(|datum| self.datum_loss(datum)).sum()
    }

    fn datum_loss(&self, datum: &Datum) -> f64 {
        let tokens = datum.model_input().to_tokens().unwrap();
        let targets = datum.target_tokens().unwrap().as_i64().unwrap();
        let weights = datum.weights().unwrap().as_f32().unwrap();
        let hidden = self.config.hidden;
        let table = &self.weights["model.embed_tokens.weight"];
        let mut rows: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&token| table[token as usize * hidden..][..hidden].to_vec())
            .collect();
        if self.config.features.scaled_embedding {
            let scale = (hidden as f64).sqrt();
            rows.iter_mut().flatten().for_each(|x| *x *= scale);
        }
        for layer in 0..self.config.layers {
            self.block(layer, &mut rows);
        }
        let mut loss = 0.0;
        for ((row, &target), &weight) in rows.iter().zip(targets).zip(weights) {
            let normed = self.norm(row, "model.norm.weight");
            let mut scores = self.linear(&normed, "lm_head", self.config.vocab);
            if let Some(cap) = self.config.features.final_softcap {
                scores.iter_mut().for_each(|z| *z = cap * (*z / cap).tanh());
            }
            let sum: f64 = scores.iter().map(|z| z.exp()).sum();
            loss -= f64::from(weight) * (scores[target as usize] - sum.ln());
        }
        loss
    }

    fn block(&self, layer: usize, rows: &mut [Vec<f64>]) {
        let config = &self.config;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let (d, shared) = (config.head_dim, config.heads / config.kv_heads);
        let (query, kv_width) = (config.query_width(), config.kv_width());
        let features = &config.features;
        let kind = config.layer_kind(layer);
        let sliding = kind == LayerKind::Sliding;
        let rope = match &features.local_rope {
            Some(local) if sliding => local,
            _ => &config.rope,
        };
        let delta = features.delta.filter(|_| kind == LayerKind::Delta);
        let outputs = delta.map(|shape| self.delta(layer, rows, shape));
        let mut qkv = Vec::new();
        let mut gates = Vec::new();
        for (position, row) in rows.iter().enumerate() {
            if outputs.is_some() {
                break;
            }
            let x = self.norm(row, &name("input_layernorm.weight"));
            let [mut q, mut k, v] = if features.fused_projections {
                let all = self.linear(&x, &name("self_attn.qkv_proj"), query + 2 * kv_width);
                let (q, kv) = all.split_at(query);
                let (k, v) = kv.split_at(kv_width);
                [q.to_vec(), k.to_vec(), v.to_vec()]
            } else {
                let gated = 1 + usize::from(features.output_gate);
                let [mut q, k, v] = [("q", gated * query), ("k", kv_width), ("v", kv_width)].map(
                    |(part, width)| {
                        self.linear(&x, &name(&format!("self_attn.{part}_proj")), width)
                    },
                );
                if features.output_gate {
                    let heads = || q.chunks_exact(2 * d);
                    gates.push(
                        heads()
                            .flat_map(|head| head[d..].to_vec())
                            .collect::<Vec<_>>(),
                    );
                    q = heads().flat_map(|head| head[..d].to_vec()).collect();
                }
                [q, k, v]
            };
            for (heads, norm) in [
                (&mut q, "self_attn.q_norm.weight"),
                (&mut k, "self_attn.k_norm.weight"),
            ] {
                for head in heads.chunks_exact_mut(d) {
                    if config.qk_norm {
                        let normed = self.norm(head, &name(norm));
                        head.copy_from_slice(&normed);
                    }
                    let frequencies = rope.frequencies(d);
                    let half = frequencies.len();
                    for (i, f) in frequencies.iter().enumerate() {
                        let (sin, cos) = (position as f64 * f).sin_cos();
                        let factor = rope.attention_factor();
                        let (low, high) = (head[i] * factor, head[i + half] * factor);
                        head[i] = low * cos - high * sin;
                        head[i + half] = high * cos + low * sin;
                    }
                }
            }
            qkv.push((q, k, v));
        }
        for (position, row) in rows.iter_mut().enumerate() {
            let mut attended = Vec::new();
            let window = features.window.filter(|_| sliding).unwrap_or(usize::MAX);
            let first = (position + 1).saturating_sub(window);
            let softmax_heads = if outputs.is_some() { 0 } else { config.heads };
            for head in 0..softmax_heads {
                let (from, kv) = (head * d, head / shared * d);
                let q = &qkv[position].0[from..from + d];
                let bounded = |s: f64| match features.attention_softcap {
                    Some(cap) => cap * (s / cap).tanh(),
                    None => s,
                };
                let e: Vec<f64> = (first..=position)
                    .map(|j| {
                        let products = q.iter().zip(&qkv[j].1[kv..]).map(|(q, k)| q * k);
                        bounded(products.sum::<f64>() * config.score_scale()).exp()
                    })
                    .collect();
                let mut sum: f64 = e.iter().sum();
                if features.sinks {
                    sum += self.weights[&name("self_attn.sinks")][head].exp();
                }
                attended.extend((0..d).map(|c| {
                    let values = e.iter().zip(&qkv[first..]);
                    values.map(|(e, (_, _, v))| e * v[kv + c]).sum::<f64>() / sum
                }));
            }
            if let Some(gates) = gates.get(position) {
                let numbers = attended.iter_mut().zip(gates);
                numbers.for_each(|(o, gate)| *o /= 1.0 + (-gate).exp());
            }
            let mut o = match &outputs {
                Some(outputs) => outputs[position].clone(),
                None => self.linear(&attended, &name("self_attn.o_proj"), config.hidden),
            };
            let mut norm_name = "post_attention_layernorm.weight";
            if features.output_norms {
                o = self.norm(&o, &name(norm_name));
                norm_name = "pre_feedforward_layernorm.weight";
            }
            row.iter_mut().zip(o).for_each(|(x, o)| *x += o);
            let x = self.norm(row, &name(norm_name));
            let mut y = match features.experts {
                None => self.mlp(&x, &name("mlp"), config.ffn),
                Some(experts) => self.mixture(&x, &name("mlp"), experts),
            };
            if features.output_norms {
                y = self.norm(&y, &name("post_feedforward_layernorm.weight"));
            }
            row.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        }
    }

    /// The outputs of a layer with a state, for all rows.
    fn delta(&self, layer: usize, rows: &[Vec<f64>], shape: DeltaRule) -> Vec<Vec<f64>> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let part = |part: &str| name(&format!("linear_attn.{part}"));
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let (keys, channels) = (shape.keys(), shape.channels());
        let (dk, dv, kernel) = (shape.key_dim, shape.value_dim, shape.kernel);
        let inputs: Vec<Vec<f64>> = rows
            .iter()
            .map(|row| self.norm(row, &name("input_layernorm.weight")))
            .collect();
        let projected: Vec<Vec<f64>> = inputs
            .iter()
            .map(|x| self.linear(x, &part("in_proj_qkv"), channels))
            .collect();
        let conv = &self.weights[&part("conv1d.weight")];
        let mut states = vec![vec![0.0; dk * dv]; shape.value_heads];
        let mut outputs = Vec::new();
        for (t, x) in inputs.iter().enumerate() {
            let mixed: Vec<f64> = (0..channels)
                .map(|c| {
                    let taps = (0..kernel.min(t + 1))
                        .map(|back| conv[c * kernel + kernel - 1 - back] * projected[t - back][c]);
                    silu(taps.sum())
                })
                .collect();
            let z = self.linear(x, &part("in_proj_z"), shape.values());
            let b = self.linear(x, &part("in_proj_b"), shape.value_heads);
            let a = self.linear(x, &part("in_proj_a"), shape.value_heads);
            let mut core = Vec::new();
            for (head, state) in states.iter_mut().enumerate() {
                let unit = |from: usize| -> Vec<f64> {
                    let x = &mixed[from + head / shape.shared() * dk..][..dk];
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / length).collect()
                };
                let (q, k) = (unit(0), unit(keys));
                let rate = self.weights[&part("A_log")][head].exp();
                let inner = a[head] + self.weights[&part("dt_bias")][head];
                let gamma = (-rate * (1.0 + inner.exp()).ln()).exp();
                let beta = 1.0 / (1.0 + (-b[head]).exp());
                state.iter_mut().for_each(|s| *s *= gamma);
                let mut o = Vec::new();
                for c in 0..dv {
                    let m: f64 = (0..dk).map(|i| state[i * dv + c] * k[i]).sum();
                    let delta = beta * (mixed[2 * keys + head * dv + c] - m);
                    (0..dk).for_each(|i| state[i * dv + c] += k[i] * delta);
                    let read: f64 = (0..dk).map(|i| state[i * dv + c] * q[i]).sum();
                    o.push(read / (dk as f64).sqrt());
                }
                let mean = o.iter().map(|x| x * x).sum::<f64>() / dv as f64;
                let v = 1.0 / (mean + self.config.rms_eps).sqrt();
                let weights = &self.weights[&part("norm.weight")];
                let gates = &z[head * dv..];
                core.extend((0..dv).map(|c| o[c] * v * weights[c] * silu(gates[c])));
            }
            outputs.push(self.linear(&core, &part("out_proj"), self.config.hidden));
        }
        outputs
    }

    fn mlp(&self, x: &[f64], name: &str, width: usize) -> Vec<f64> {
        let (gate, up) = if self.config.features.fused_projections {
            let both = self.linear(x, &format!("{name}.gate_up_proj"), 2 * width);
            (both[..width].to_vec(), both[width..].to_vec())
        } else {
            let part = |part: &str| self.linear(x, &format!("{name}.{part}_proj"), width);
            (part("gate"), part("up"))
        };
        let activate = |(&g, &u): (&f64, &f64)| match self.config.features.activation {
            Activation::SwiGlu => g / (1.0 + (-g).exp()) * u,
            Activation::GeGlu => {
                let root = (2.0 / std::f64::consts::PI).sqrt();
                0.5 * g * (1.0 + (root * (g + 0.044715 * g.powi(3))).tanh()) * u
            }
            Activation::ClampedSwiGlu => {
                let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
            }
        };
        let a: Vec<f64> = gate.iter().zip(&up).map(activate).collect();
        self.linear(&a, &format!("{name}.down_proj"), self.config.hidden)
    }

    fn mixture(&self, x: &[f64], name: &str, experts: Experts) -> Vec<f64> {
        let router = if experts.biases { "router" } else { "gate" };
        let scores = self.linear(x, &format!("{name}.{router}"), experts.count);
        let mut order: Vec<usize> = (0..experts.count).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let chosen = &order[..experts.per_token];
        let counted = if experts.normalised { chosen } else { &order };
        let sum: f64 = counted.iter().map(|&expert| scores[expert].exp()).sum();
        let mut y = vec![0.0; x.len()];
        for &expert in chosen {
            let weight = scores[expert].exp() / sum;
            let output = self.mlp(x, &format!("{name}.experts.{expert}"), experts.ffn);
            y.iter_mut().zip(output).for_each(|(y, o)| *y += weight * o);
        }
        if let Some(width) = experts.shared {
            let score = self.linear(x, &format!("{name}.shared_expert_gate"), 1)[0];
            let weight = 1.0 / (1.0 + (-score).exp());
            let output = self.mlp(x, &format!("{name}.shared_expert"), width);
            y.iter_mut().zip(output).for_each(|(y, o)| *y += weight * o);
        }
        y
    }

    fn norm(&self, x: &[f64], weight: &str) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let v = 1.0 / (mean + self.config.rms_eps).sqrt();
        let one = f64::from(u8::from(self.config.features.norms_add_one));
        x.iter()
            .zip(&self.weights[weight])
            .map(|(x, w)| x * v * (w + one))
            .collect()
    }

    fn linear(&self, x: &[f64], layer: &str, outputs: usize) -> Vec<f64> {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let weight = self
            .weights
            .get(&format!("{layer}.weight"))
            .unwrap_or_else(|| &self.weights["model.embed_tokens.weight"]);
        let mut y: Vec<f64> = (0..outputs)
            .map(|o| dot(x, &weight[o * x.len()..][..x.len()]))
            .collect();
        if let Some(bias) = self.weights.get(&format!("{layer}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        if let (Some((rank, alpha)), Some(a), Some(b)) = (
            self.lora,
            self.weights.get(&format!("{layer}.lora_A")),
            self.weights.get(&format!("{layer}.lora_B")),
        ) {
            for r in 0..rank {
                let u = dot(x, &a[r * x.len()..][..x.len()]) * alpha / rank as f64;
                y.iter_mut()
                    .zip(&b[r * outputs..])
                    .for_each(|(y, b)| *y += u * b);
            }
        }
        y
    }
}
