//! Sampling end to end, on a small random model with random adapters.

mod agreement;
mod exactness;
mod extras;
mod lifecycle;
mod numbers;

use std::collections::BTreeMap;
use std::sync::Arc;

use tinkrs_engine::peft::{LoraPair, PeftAdapter};
use tinkrs_engine::sample::{Event, SampleRequest, Sampler, SamplerSettings, Ticket};
use tinkrs_engine::weights::{Dtype, RandomWeights};
use tinkrs_engine::{Adapter, KvCache, Model, ModelConfig, Precision, SequenceInput, Threads};
use tinkrs_types::SampleOutput;

fn config() -> ModelConfig {
    ModelConfig {
        max_context: 512,
        eos: vec![2],
        ..ModelConfig::tiny_qwen3()
    }
}

fn model() -> Arc<Model> {
    model_with_threads(2)
}

fn model_with_threads(threads: usize) -> Arc<Model> {
    let source = RandomWeights::new(config(), 7, Dtype::Bf16).unwrap();
    let threads = Threads::new(threads).unwrap();
    Arc::new(Model::load(&source, Precision::Stored, &threads).unwrap())
}

/// An adapter of the query projections and the MLP, large enough to change what is sampled.
fn adapter(model: &Model, seed: u32) -> Arc<Adapter> {
    adapter_of(model, |i| {
        (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) % 1009) as f32 / 1009.0 - 0.5
    })
}

fn adapter_of(model: &Model, value: impl Fn(u32) -> f32) -> Arc<Adapter> {
    let config = model.config();
    let rank = 4;
    let mut layers = BTreeMap::new();
    for layer in 0..config.layers {
        for (name, outputs, inputs) in [
            (
                "self_attn.q_proj",
                config.heads * config.head_dim,
                config.hidden,
            ),
            ("mlp.down_proj", config.hidden, config.ffn),
        ] {
            let values = |len: usize| (0..len as u32).map(&value).collect();
            let pair = LoraPair {
                a: values(rank * inputs),
                b: values(outputs * rank),
            };
            layers.insert(format!("model.layers.{layer}.{name}"), pair);
        }
    }
    let peft = PeftAdapter {
        base_model: "random".to_owned(),
        rank,
        alpha: 2.0,
        layers,
    };
    Arc::new(Adapter::from_peft(model, &peft).unwrap())
}

fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 31 + seed * 17 + i * i) % config().vocab as u32)
        .collect()
}

fn sampler(model: &Arc<Model>) -> Sampler {
    Sampler::new(Arc::clone(model), SamplerSettings::default())
}

/// Runs until nothing is left to do, and returns the results of the requests that finished.
fn run(sampler: &mut Sampler) -> BTreeMap<Ticket, SampleOutput> {
    let mut outputs = BTreeMap::new();
    let mut steps = 0;
    while !sampler.is_idle() {
        for event in sampler.step() {
            match event {
                Event::Finished { ticket, output } => {
                    assert!(outputs.insert(ticket, *output).is_none(), "finished twice");
                }
                Event::Failed { ticket, error } => panic!("{ticket:?}: {error}"),
                _ => {}
            }
        }
        steps += 1;
        assert!(steps < 10_000, "the sampler does not come to an end");
    }
    outputs
}

fn sample(sampler: &mut Sampler, request: SampleRequest) -> SampleOutput {
    let ticket = sampler.submit(request).unwrap();
    run(sampler).remove(&ticket).unwrap()
}

/// The model's logits after every token of a sequence, in one pass.
fn all_logits(model: &Model, adapter: Option<&Adapter>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut cache = KvCache::new(model);
    let mut inputs = [SequenceInput {
        cache: &mut cache,
        tokens,
        adapter,
        wanted: 0..tokens.len(),
    }];
    let hidden = model.step(&mut inputs).unwrap();
    let logits = model.logits(&hidden, 0..tokens.len());
    logits
        .chunks_exact(model.config().vocab)
        .map(<[f32]>::to_vec)
        .collect()
}

fn log_softmax(logits: &[f32], token: u32) -> f64 {
    let sum: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
    f64::from(logits[token as usize]) - sum.ln()
}
