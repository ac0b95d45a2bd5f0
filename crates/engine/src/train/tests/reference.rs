//! The whole model once more, naively and in `f64`, as the oracle of the gradient tests.

use std::collections::BTreeMap;

use tinkrs_types::Datum;

use crate::ModelConfig;
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
        for layer in 0..self.config.layers {
            self.block(layer, &mut rows);
        }
        let mut loss = 0.0;
        for ((row, &target), &weight) in rows.iter().zip(targets).zip(weights) {
            let normed = self.norm(row, "model.norm.weight");
            let scores = self.linear(&normed, "lm_head", self.config.vocab);
            let sum: f64 = scores.iter().map(|z| z.exp()).sum();
            loss -= f64::from(weight) * (scores[target as usize] - sum.ln());
        }
        loss
    }

    fn block(&self, layer: usize, rows: &mut [Vec<f64>]) {
        let config = &self.config;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let (d, shared) = (config.head_dim, config.heads / config.kv_heads);
        let mut qkv = Vec::new();
        for (position, row) in rows.iter().enumerate() {
            let x = self.norm(row, &name("input_layernorm.weight"));
            let mut q = self.linear(&x, &name("self_attn.q_proj"), config.query_width());
            let mut k = self.linear(&x, &name("self_attn.k_proj"), config.kv_width());
            let v = self.linear(&x, &name("self_attn.v_proj"), config.kv_width());
            for (heads, norm) in [
                (&mut q, "self_attn.q_norm.weight"),
                (&mut k, "self_attn.k_norm.weight"),
            ] {
                for head in heads.chunks_exact_mut(d) {
                    if config.qk_norm {
                        let normed = self.norm(head, &name(norm));
                        head.copy_from_slice(&normed);
                    }
                    for (i, f) in config.rope.frequencies(d).iter().enumerate() {
                        let (sin, cos) = (position as f64 * f).sin_cos();
                        let (low, high) = (head[i], head[i + d / 2]);
                        head[i] = low * cos - high * sin;
                        head[i + d / 2] = high * cos + low * sin;
                    }
                }
            }
            qkv.push((q, k, v));
        }
        for (position, row) in rows.iter_mut().enumerate() {
            let mut attended = Vec::new();
            for head in 0..config.heads {
                let (from, kv) = (head * d, head / shared * d);
                let q = &qkv[position].0[from..from + d];
                let e: Vec<f64> = (0..=position)
                    .map(|j| {
                        q.iter()
                            .zip(&qkv[j].1[kv..])
                            .map(|(q, k)| q * k)
                            .sum::<f64>()
                            / (d as f64).sqrt()
                    })
                    .map(f64::exp)
                    .collect();
                let sum: f64 = e.iter().sum();
                attended.extend((0..d).map(|c| {
                    e.iter()
                        .zip(&qkv)
                        .map(|(e, (_, _, v))| e * v[kv + c])
                        .sum::<f64>()
                        / sum
                }));
            }
            let o = self.linear(&attended, &name("self_attn.o_proj"), config.hidden);
            row.iter_mut().zip(o).for_each(|(x, o)| *x += o);
            let x = self.norm(row, &name("post_attention_layernorm.weight"));
            let gate = self.linear(&x, &name("mlp.gate_proj"), config.ffn);
            let up = self.linear(&x, &name("mlp.up_proj"), config.ffn);
            let a: Vec<f64> = gate
                .iter()
                .zip(up)
                .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                .collect();
            let y = self.linear(&a, &name("mlp.down_proj"), config.hidden);
            row.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        }
    }

    fn norm(&self, x: &[f64], weight: &str) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let v = 1.0 / (mean + self.config.rms_eps).sqrt();
        x.iter()
            .zip(&self.weights[weight])
            .map(|(x, w)| x * v * w)
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
