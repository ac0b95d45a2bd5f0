//! Logits and log-probabilities against `transformers` and `peft`.
//!
//! Tolerances are absolute; logits here are at most 4 in size. The differences seen are below 4e-6.

use std::path::Path;

use tinkrs_engine::weights::{GgufFile, HuggingFaceFolder};
use tinkrs_engine::{Adapter, KvCache, Model, Precision, SequenceInput, Threads, peft};

use crate::reference::{self, TINY_MODELS, Tensors, largest_difference};

const TOLERANCE: f32 = 1e-5;

pub(crate) fn load(folder: &Path) -> Model {
    let folder = HuggingFaceFolder::open(folder).unwrap();
    Model::load(&folder, Precision::Stored, &Threads::new(2).unwrap()).unwrap()
}

/// Computes the logits of all tokens of several sequences in one step.
pub(crate) fn logits(
    model: &Model,
    adapter: Option<&Adapter>,
    sequences: &[Vec<u32>],
) -> Vec<Vec<f32>> {
    let mut caches: Vec<KvCache> = sequences.iter().map(|_| KvCache::new(model)).collect();
    let mut inputs: Vec<SequenceInput<'_>> = caches
        .iter_mut()
        .zip(sequences)
        .map(|(cache, tokens)| SequenceInput {
            cache,
            tokens,
            adapter,
            wanted: 0..tokens.len(),
        })
        .collect();
    let hidden = model.step(&mut inputs).unwrap();
    let mut start = 0;
    sequences
        .iter()
        .map(|tokens| {
            start += tokens.len();
            model.logits(&hidden, start - tokens.len()..start)
        })
        .collect()
}

/// Picks each target's log-probability out of its row of logits.
pub(crate) fn logprobs(logits: &[f32], targets: &[u32]) -> Vec<f32> {
    let rows = logits.chunks_exact(logits.len() / targets.len());
    rows.zip(targets)
        .map(|(row, &target)| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|x| f64::from(x - largest).exp()).sum();
            (f64::from(row[target as usize] - largest) - sum.ln()) as f32
        })
        .collect()
}

pub(crate) fn sequences(expected: &Tensors) -> Vec<Vec<u32>> {
    [0, 1]
        .map(|s| expected.tokens(&format!("tokens.{s}")))
        .into()
}

#[test]
fn logits_and_logprobs_equal_those_of_transformers() {
    for name in TINY_MODELS {
        let (model, expected) = (load(&reference::path(name)), Tensors::expected(name));
        let ours = logits(&model, None, &sequences(&expected));
        for (s, ours) in ours.iter().enumerate() {
            let theirs = expected.floats(&format!("logits.{s}"));
            let difference = largest_difference(ours, &theirs);
            println!("{name}, sequence {s}: logits differ by {difference:.1e}");
            assert!(difference <= TOLERANCE, "{name}, logits: {difference}");

            let ours = logprobs(ours, &expected.tokens(&format!("targets.{s}")));
            let theirs = expected.floats(&format!("logprobs.{s}"));
            let difference = largest_difference(&ours, &theirs);
            assert!(difference <= TOLERANCE, "{name}, logprobs: {difference}");
        }
    }
}

#[test]
fn adapters_made_by_peft_give_the_same_logits() {
    for name in TINY_MODELS {
        let (model, expected) = (load(&reference::path(name)), Tensors::expected(name));
        let adapter = peft::load(&reference::path(name).join("adapter"), model.config()).unwrap();
        let adapter = Adapter::from_peft(&model, &adapter).unwrap();
        let ours = logits(&model, Some(&adapter), &sequences(&expected));
        for (s, ours) in ours.iter().enumerate() {
            let theirs = expected.floats(&format!("adapted.logits.{s}"));
            let difference = largest_difference(ours, &theirs);
            println!("{name}, sequence {s}: adapted logits differ by {difference:.1e}");
            assert!(difference <= TOLERANCE, "{name}: {difference}");
        }
    }
}

#[test]
fn a_gguf_file_gives_nearly_the_logits_of_its_folder() {
    // Files of Gemma have another scale of queries than these folders.
    for name in [
        "tiny-llama",
        "tiny-qwen2",
        "tiny-qwen3",
        "tiny-phi3",
        "tiny-qwen3-moe",
        "tiny-qwen35",
        "tiny-qwen35-moe",
    ] {
        let file = GgufFile::open(reference::path(&format!("gguf/{name}.gguf"))).unwrap();
        let model = Model::load(&file, Precision::F32, &Threads::new(1).unwrap()).unwrap();
        let expected = Tensors::expected(name);
        let ours = logits(&model, None, &sequences(&expected));
        for (s, ours) in ours.iter().enumerate() {
            let difference = largest_difference(ours, &expected.floats(&format!("logits.{s}")));
            // Half of the MLP is in eight bits; rows in the wrong order would cost about 1.
            println!("{name}, sequence {s}: GGUF logits differ by {difference:.1e}");
            assert!(difference <= 0.1, "{name}: {difference}");
        }
    }
}
