//! Losses, gradients and optimizer steps against PyTorch and PEFT.
//!
//! A gradient is compared relative to the largest element of its tensor; the differences seen are
//! below 3e-6.

use std::sync::Arc;

use tinkrs_engine::types::{AdamParams, Datum, LossFn};
use tinkrs_engine::weights::{GgufFile, HuggingFaceFolder, WeightSource, save_folder};
use tinkrs_engine::{Model, Precision, Threads, TrainingRun, peft};

use crate::forward::{load, logprobs};
use crate::reference::{self, TINY_MODELS, Tensors, largest_difference, relative_difference};

/// Prefix of PEFT's names, and ending.
pub(crate) const PREFIX: &str = "base_model.model.";
pub(crate) const ENDING: &str = ".weight";

pub(crate) fn data(expected: &Tensors) -> Vec<Datum> {
    [0, 1]
        .map(|s| {
            let tokens = expected.tokens(&format!("tokens.{s}"));
            let targets = expected.tokens(&format!("targets.{s}"));
            let targets: Vec<i64> = targets.into_iter().map(i64::from).collect();
            let weights = expected.floats(&format!("weights.{s}"));
            Datum::supervised(tokens, targets, weights).unwrap()
        })
        .into()
}

/// A run that goes on with the adapter that `peft` made.
pub(crate) fn adapted(name: &str) -> TrainingRun {
    let model = Arc::new(load(&reference::path(name)));
    let adapter = peft::load(&reference::path(name).join("adapter"), model.config()).unwrap();
    TrainingRun::from_peft(model, &adapter).unwrap()
}

/// Reads the gradients out of the run's saved state.
pub(crate) fn gradients(run: &TrainingRun) -> Tensors {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    run.state().write(&path).unwrap();
    Tensors::read(&path)
}

/// llama.cpp has the heads of the gated delta rule in another order, which the model keeps for columns.
#[test]
fn a_gguf_file_trains_as_the_folder_that_is_written_from_it() {
    for name in ["tiny-qwen35", "tiny-qwen35-moe"] {
        let path = reference::path("gguf").join(format!("{name}.gguf"));
        let gguf = GgufFile::open(path).unwrap();
        let written = tempfile::tempdir().unwrap();
        save_folder(&gguf, written.path()).unwrap();
        let folder = HuggingFaceFolder::open(written.path()).unwrap();
        let expected = Tensors::expected(name);
        let adapter = peft::load(&reference::path(name).join("adapter"), gguf.config()).unwrap();
        let [ours, theirs] = [&gguf as &dyn WeightSource, &folder].map(|source| {
            let threads = Threads::new(1).unwrap();
            let model = Arc::new(Model::load(source, Precision::F32, &threads).unwrap());
            let mut run = TrainingRun::from_peft(model, &adapter).unwrap();
            run.forward_backward(&data(&expected), &LossFn::CrossEntropy)
                .unwrap();
            gradients(&run)
        });
        let mut compared = 0;
        for gradient in theirs.names("gradients.") {
            let gradient = format!("gradients.{gradient}");
            let difference =
                relative_difference(&ours.floats(&gradient), &theirs.floats(&gradient));
            assert!(difference <= 2e-5, "{name}, {gradient}: {difference}");
            compared += 1;
        }
        assert_eq!(compared, 2 * adapter.layers.len(), "{name}");
    }
}

#[test]
fn a_full_run_from_a_gguf_file_has_the_bits_of_one_from_the_folder_that_is_written_from_it() {
    let gguf = GgufFile::open(reference::path("gguf/tiny-qwen35-moe.gguf")).unwrap();
    let written = tempfile::tempdir().unwrap();
    save_folder(&gguf, written.path()).unwrap();
    let folder = HuggingFaceFolder::open(written.path()).unwrap();
    let data = data(&Tensors::expected("tiny-qwen35-moe"));
    let [ours, theirs] = [&gguf as &dyn WeightSource, &folder].map(|source| {
        let mut run = TrainingRun::full(source, &Threads::new(2).unwrap()).unwrap();
        let before = run.forward_backward(&data, &LossFn::CrossEntropy).unwrap();
        run.optim_step(AdamParams::new(1e-3)).unwrap();
        let after = run.forward(&data, &LossFn::CrossEntropy).unwrap();
        [before, after].map(|output| output.logprobs(0).unwrap().to_vec())
    });
    assert_eq!(ours, theirs);
}

#[test]
fn losses_logprobs_and_lora_gradients_equal_those_of_peft() {
    for name in TINY_MODELS {
        let (mut run, expected) = (adapted(name), Tensors::expected(name));
        let data = data(&expected);
        let output = run.forward_backward(&data, &LossFn::CrossEntropy).unwrap();
        let (ours, theirs) = (
            output.loss().unwrap(),
            f64::from(expected.floats("loss")[0]),
        );
        assert!(
            (ours / theirs - 1.0).abs() < 1e-6,
            "{name}: loss {ours} against {theirs}"
        );

        for (s, datum) in data.iter().enumerate() {
            let targets = datum.target_tokens().unwrap().as_i64().unwrap();
            let targets: Vec<u32> = targets.iter().map(|&t| t.try_into().unwrap()).collect();
            let theirs = logprobs(&expected.floats(&format!("adapted.logits.{s}")), &targets);
            let difference = largest_difference(output.logprobs(s).unwrap(), &theirs);
            assert!(difference <= 1e-5, "{name}, datum {s}: {difference}");
        }

        let gradients = gradients(&run);
        let mut worst = 0f32;
        for parameter in expected.names("grad.") {
            let theirs = expected.floats(&format!("grad.{parameter}"));
            let layer = parameter
                .strip_prefix(PREFIX)
                .unwrap()
                .strip_suffix(ENDING)
                .unwrap();
            let mut ours = gradients.floats(&format!("gradients.{layer}"));
            if layer.ends_with("lora_B") {
                ours = transpose(&ours, 4);
            }
            let difference = relative_difference(&ours, &theirs);
            // PyTorch computes the gated delta rule in chunks, the engine token by token.
            let bound = if name == "tiny-qwen35" { 3e-5 } else { 1e-5 };
            assert!(difference <= bound, "{name}, {layer}: {difference}");
            worst = worst.max(difference);
        }
        println!(
            "{name}: loss differs by {:.1e}, gradients by {worst:.1e}",
            ours - theirs
        );
    }
}

#[test]
fn gradients_of_all_weights_equal_those_of_torch() {
    for name in TINY_MODELS {
        let expected = Tensors::expected(name);
        let source = HuggingFaceFolder::open(reference::path(name)).unwrap();
        let mut run = TrainingRun::full(&source, &Threads::new(2).unwrap()).unwrap();
        let output = run
            .forward_backward(&data(&expected), &LossFn::CrossEntropy)
            .unwrap();
        let (ours, theirs) = (
            output.loss().unwrap(),
            f64::from(expected.floats("full.loss")[0]),
        );
        assert!(
            (ours / theirs - 1.0).abs() < 1e-6,
            "{name}: loss {ours} against {theirs}"
        );

        let gradients = gradients(&run);
        let mut worst = 0f32;
        for tensor in expected.names("full.grad.") {
            let theirs = expected.floats(&format!("full.grad.{tensor}"));
            let mut ours = gradients.floats(&format!("gradients.{tensor}"));
            if tensor == "model.embed_tokens.weight" && run.model().config().tied_head {
                // The two uses of a tied table are summed apart, and joined by the step.
                let head = gradients.floats("gradients.lm_head.weight");
                ours.iter_mut()
                    .zip(head)
                    .for_each(|(sum, head)| *sum += head);
            }
            let difference = relative_difference(&ours, &theirs);
            assert!(difference <= 1e-5, "{name}, {tensor}: {difference}");
            worst = worst.max(difference);
        }
        println!("{name}: gradients of all weights differ by {worst:.1e}");
    }
}

#[test]
fn three_optimizer_steps_equal_those_of_torch() {
    for name in TINY_MODELS {
        let expected = Tensors::expected(name);
        let data = data(&expected);
        for (variant, weight_decay, grad_clip_norm) in [
            ("plain", 0.0, 0.0),
            ("decay", 0.1, 0.0),
            ("clip", 0.01, 0.5),
        ] {
            let settings = AdamParams {
                weight_decay,
                grad_clip_norm,
                ..AdamParams::new(1e-2)
            };
            let mut run = adapted(name);
            let losses = expected.floats(&format!("adamw.{variant}.losses"));
            let norms = expected.floats(&format!("adamw.{variant}.norms"));
            for (step, (loss, norm)) in losses.iter().zip(norms).enumerate() {
                let output = run.forward_backward(&data, &LossFn::CrossEntropy).unwrap();
                let relative = output.loss().unwrap() / f64::from(*loss) - 1.0;
                assert!(
                    relative.abs() < 1e-5,
                    "{name}, {variant}, step {step}: {relative}"
                );
                let metrics = run.optim_step(settings).unwrap().metrics.unwrap();
                let relative = metrics["grad_norm"] / f64::from(norm) - 1.0;
                assert!(
                    relative.abs() < 1e-5,
                    "{name}, {variant}, step {step}: {relative}"
                );
            }

            let adapter = run.to_peft(name).unwrap();
            let mut worst = 0f32;
            for (layer, pair) in &adapter.layers {
                for (part, ours) in [("lora_A", &pair.a), ("lora_B", &pair.b)] {
                    let key = format!("adamw.{variant}.{PREFIX}{layer}.{part}{ENDING}");
                    worst = worst.max(largest_difference(ours, &expected.floats(&key)));
                }
            }
            println!("{name}, {variant}: parameters differ by {worst:.1e} after three steps");
            // The steps are 1e-2 each, and a gradient near zero has few digits that are right.
            assert!(worst <= 5e-5, "{name}, {variant}: {worst}");
        }
    }
}

/// From the run's `rank × outputs` to PEFT's `outputs × rank`.
pub(crate) fn transpose(values: &[f32], rank: usize) -> Vec<f32> {
    let outputs = values.len() / rank;
    (0..values.len())
        .map(|i| values[i % rank * outputs + i / rank])
        .collect()
}
