//! The fake keeps what every backend promises.

use tinkrs_backend::{Objective, PassProgress, PassRequest, SampleEvent, SampleRequest};
use tinkrs_types::{AdamParams, Datum, LossFn};

use super::*;

fn data() -> Vec<Datum> {
    let datum = |prompt| Datum::from_prompt_completion(&[prompt, 5], &[9, 30]).unwrap();
    vec![datum(1), datum(40), datum(7)]
}

fn pass(run: &mut dyn TrainingRun, max_tokens: usize) -> tinkrs_types::ForwardBackwardOutput {
    let request = PassRequest {
        data: data(),
        objective: Objective::BuiltIn(LossFn::CrossEntropy),
        backward: true,
    };
    let mut pass = run.begin(request).unwrap();
    loop {
        if let PassProgress::Done(output) = pass.advance(max_tokens).unwrap() {
            return output;
        }
    }
}

/// Trains some steps in slices, and returns the losses and the state.
fn train(backend: &FakeBackend, max_tokens: usize) -> (Vec<f64>, Vec<u8>) {
    let mut run = backend
        .create(&LoraConfig::new(4), &OptimizerConfig::AdamW)
        .unwrap();
    let mut losses = Vec::new();
    for _ in 0..5 {
        losses.push(pass(&mut *run, max_tokens).loss().unwrap());
        run.optim_step(&AdamParams::new(0.1).into()).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    run.state().write(&file).unwrap();
    let restored = backend.restore(&file, StatePart::Everything).unwrap();
    let again = folder.path().join("again");
    restored.state().write(&again).unwrap();
    let bytes = fs::read(&file).unwrap();
    assert_eq!(bytes, fs::read(again).unwrap());
    (losses, bytes)
}

#[test]
fn the_loss_falls_and_slices_do_not_show() {
    let whole = train(&FakeBackend::new(), usize::MAX);
    assert!(whole.0.is_sorted_by(|a, b| a > b), "{:?}", whole.0);
    for max_tokens in [1, 7] {
        assert_eq!(train(&FakeBackend::new(), max_tokens), whole);
    }
}

#[test]
fn an_inexact_backend_gives_other_bits_when_it_repeats() {
    let backend = FakeBackend::inexact();
    assert_ne!(train(&backend, 1).1, train(&backend, 1).1);
    assert!(!backend.describe().repeats_exactly);
    assert_eq!(backend.steps(), 10);
}

#[test]
fn samples_have_the_log_probabilities_of_the_trained_adapter() {
    let backend = FakeBackend::new();
    let mut run = backend
        .create(&LoraConfig::new(4), &OptimizerConfig::AdamW)
        .unwrap();
    pass(&mut *run, usize::MAX);
    run.optim_step(&AdamParams::new(0.5).into()).unwrap();
    let mut sampler = backend.sampler(SamplerOptions {
        cache_bytes: None,
        queued_requests: 2,
        draft_tokens: 0,
        detokenizer: None,
    });
    let adapter = sampler.add_adapter(&run.adapter()).unwrap();
    let request = SampleRequest {
        adapter: Some(adapter),
        num_samples: 3,
        ..SampleRequest::new([1, 5], 4)
    };
    sampler.submit(request.clone()).unwrap();
    sampler.submit(request.clone()).unwrap();
    assert!(sampler.submit(request).is_err(), "the queue is full");
    let mut outputs = Vec::new();
    while !sampler.is_idle() {
        for event in sampler.step() {
            if let SampleEvent::Finished { output, .. } = event {
                outputs.push(output);
            }
        }
    }
    assert_eq!(outputs.len(), 2);
    assert_eq!(outputs[0], outputs[1], "the same seed");
    let weights = run.adapter().downcast::<Vec<f32>>().unwrap();
    for sequence in &outputs[0].sequences {
        let first = sequence.tokens[0] as usize;
        assert_eq!(
            sequence.logprobs.as_ref().unwrap()[0],
            logprobs(&weights, 5)[first]
        );
    }
}
