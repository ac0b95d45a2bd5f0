//! Slices, and what is left of a pass that did not end.

use tinkrs_backend::{Backend, Objective, PassProgress, PassRequest};
use tinkrs_types::{AdamParams, Datum, ForwardBackwardOutput, LossFn};

use super::*;
use crate::weights::Dtype;
use crate::weights::RandomWeights;
use crate::{Precision, Threads};

fn backend_of(config: &ModelConfig) -> CpuBackend {
    let weights = RandomWeights::new(config.clone(), 3, Dtype::Bf16).unwrap();
    CpuBackend::new(Model::load(&weights, Precision::Stored, &Threads::new(2).unwrap()).unwrap())
}

fn lora() -> LoraConfig {
    LoraConfig {
        seed: Some(7),
        ..LoraConfig::new(4)
    }
}

/// Datums of different lengths.
fn data() -> Vec<Datum> {
    let datum = |(index, length): (u32, u32)| {
        let tokens: Vec<u32> = (0..length).map(|i| (i * 7 + index * 3 + 1) % 50).collect();
        Datum::from_prompt_completion(&tokens[..1], &tokens[1..]).unwrap()
    };
    (0..).zip([9, 3, 17, 2, 8, 5]).map(datum).collect()
}

fn request(data: Vec<Datum>, backward: bool) -> PassRequest {
    PassRequest {
        data,
        objective: Objective::BuiltIn(LossFn::CrossEntropy),
        backward,
    }
}

/// Runs a pass in slices, and returns its output and how many slices there were.
fn run_pass(
    run: &mut dyn backend::TrainingRun,
    request: PassRequest,
    max_tokens: usize,
) -> (ForwardBackwardOutput, usize) {
    let mut pass = run.begin(request).unwrap();
    for slices in 1.. {
        if let PassProgress::Done(output) = pass.advance(max_tokens).unwrap() {
            return (output, slices);
        }
    }
    unreachable!("a pass ends")
}

/// The state of a run, as bytes.
fn state(run: &dyn backend::TrainingRun) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    run.state().write(&file).unwrap();
    std::fs::read(file).unwrap()
}

#[test]
fn slices_of_any_size_give_the_same_bits() {
    for config in ModelConfig::tiny_models() {
        let backend = backend_of(&config);
        let trained = |max_tokens| {
            let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
            let mut outputs = Vec::new();
            for _ in 0..2 {
                for backward in [true, false, true] {
                    let (output, slices) =
                        run_pass(&mut *run, request(data(), backward), max_tokens);
                    match max_tokens {
                        usize::MAX => assert_eq!(slices, 1),
                        1 => assert_eq!(slices, data().len()),
                        _ => assert!((2..=data().len()).contains(&slices), "{slices} slices"),
                    }
                    outputs.push(output);
                }
                run.optim_step(&AdamParams::new(1e-2).into()).unwrap();
            }
            // Gradients that no step has used are part of the state.
            run_pass(&mut *run, request(data(), true), max_tokens);
            (outputs, state(&*run))
        };
        let whole = trained(usize::MAX);
        for max_tokens in [1, 4, 10, 20, 30] {
            let sliced = trained(max_tokens);
            assert!(
                sliced == whole,
                "{max_tokens} tokens of {:?}",
                config.architecture
            );
        }
    }
}

#[test]
fn a_pass_that_is_dropped_half_way_changes_nothing() {
    let backend = backend_of(&ModelConfig::tiny_qwen3());
    let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
    run_pass(&mut *run, request(data(), true), usize::MAX);
    let before = state(&*run);
    for slices in 0..5 {
        let mut pass = run.begin(request(data(), true)).unwrap();
        for _ in 0..slices {
            assert_eq!(pass.advance(1).unwrap(), PassProgress::Continue);
        }
        drop(pass);
        assert!(state(&*run) == before, "after {slices} slices");
    }
}

#[test]
fn a_pass_that_fails_half_way_changes_nothing() {
    #[derive(Debug)]
    struct FailsAtLast;
    impl backend::CustomLoss for FailsAtLast {
        fn check(&self, _: &Datum) -> Result<(), tinkrs_types::InvalidInput> {
            Ok(())
        }

        fn evaluate(&self, logprobs: &[f32], _: &Datum) -> Result<backend::CustomOutput, String> {
            if logprobs.len() == 4 {
                return Err("no loss for this one".to_owned());
            }
            Ok(backend::CustomOutput {
                loss: 1.0,
                gradient: vec![1.0; logprobs.len()],
                metrics: Vec::new(),
            })
        }
    }
    let backend = backend_of(&ModelConfig::tiny_llama());
    let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
    let before = state(&*run);
    let objective = Objective::Custom(Arc::new(FailsAtLast));
    let request = PassRequest {
        objective,
        ..request(data(), true)
    };
    let mut pass = run.begin(request).unwrap();
    let error = loop {
        match pass.advance(1) {
            Ok(PassProgress::Continue) => {}
            Ok(PassProgress::Done(_)) => panic!("the last datum fails"),
            Err(error) => break error,
        }
    };
    assert!(error.is_bad_request(), "{error}");
    assert!(
        error.to_string().contains("no loss for this one"),
        "{error}"
    );
    assert!(pass.advance(1).is_err(), "it has ended");
    assert!(state(&*run) == before);
}

#[test]
fn a_pass_that_was_overtaken_cannot_be_continued() {
    let backend = backend_of(&ModelConfig::tiny_llama());
    let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
    let mut first = run.begin(request(data(), true)).unwrap();
    first.advance(1).unwrap();
    run_pass(&mut *run, request(data(), true), usize::MAX);
    let before = state(&*run);
    assert!(first.advance(1).is_err());
    let mut second = run.begin(request(data(), true)).unwrap();
    second.advance(1).unwrap();
    assert!(state(&*run) == before);
    run.optim_step(&AdamParams::new(1e-2).into()).unwrap();
    assert!(second.advance(1).is_err());
}

#[test]
fn a_restored_run_continues_and_its_weights_alone_start_anew() {
    let backend = backend_of(&ModelConfig::tiny_llama());
    let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
    run_pass(&mut *run, request(data(), true), usize::MAX);
    run.optim_step(&AdamParams::new(1e-2).into()).unwrap();
    run_pass(&mut *run, request(data(), true), usize::MAX);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    run.state().write(&file).unwrap();
    let mut whole = backend.restore(&file, StatePart::Everything).unwrap();
    assert!(state(&*whole) == state(&*run));
    assert_eq!(whole.lora(), LoraConfig::new(4));
    let mut weights = backend
        .restore(&file, StatePart::Weights(OptimizerConfig::AdamW))
        .unwrap();
    let output = run_pass(&mut *weights, request(data(), false), 4).0;
    assert_eq!(output, run_pass(&mut *run, request(data(), false), 4).0);
    let step = |run: &mut dyn backend::TrainingRun| {
        let metrics = run
            .optim_step(&AdamParams::new(1e-2).into())
            .unwrap()
            .metrics;
        metrics.unwrap()["optimizer_step"]
    };
    assert_eq!((step(&mut *weights), step(&mut *whole)), (1.0, 2.0));
}

#[test]
fn a_run_needs_what_its_state_and_its_packed_adapter_take() {
    for config in ModelConfig::tiny_models() {
        let backend = backend_of(&config);
        let mut run = backend.create(&lora(), &OptimizerConfig::AdamW).unwrap();
        run_pass(&mut *run, request(data(), true), usize::MAX);
        run.optim_step(&AdamParams::new(1e-2).into()).unwrap();
        run_pass(&mut *run, request(data(), true), usize::MAX);
        // Weights, gradients and moments, with the names of the tensors.
        let state = state(&*run).len() as u64;
        let names = 160 * 4 * TrainingRun::lora_shapes(&backend.model, &lora()).len() as u64;
        let packed = backend.memory(&Need::Adapter { lora: lora() });
        let needed = backend.memory(&Need::Run { lora: lora() });
        let held = needed - packed;
        assert!(
            held <= state && state <= held + names,
            "{held} bytes for a state of {state}"
        );
        // Two forms of each matrix, of which some sides are padded to 16.
        assert!(packed >= held / 2, "{packed} bytes packed of {held}");
    }
}

#[test]
fn a_pass_needs_memory_for_its_tokens_up_to_what_is_computed_at_once() {
    let backend = backend_of(&ModelConfig::tiny_llama());
    let need = |tokens, longest, backward| {
        backend.memory(&Need::Slice {
            lora: lora(),
            tokens,
            longest,
            backward,
        })
    };
    assert!(need(200, 50, true) > need(100, 50, true));
    assert!(need(100, 50, true) > need(100, 50, false));
    let many = 1 << 40;
    assert_eq!(need(many, 50, true), need(2 * many, 50, true));
    assert!(
        need(many, many, true) > need(many, 50, true),
        "a datum is not cut"
    );
    let sequence = |tokens| backend.memory(&Need::Sequence { tokens });
    assert!(sequence(100) > sequence(10) && sequence(10) > 0);
}
