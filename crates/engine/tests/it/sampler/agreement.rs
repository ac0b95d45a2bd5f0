//! Sampling and training see the same model: their log-probabilities are equal, bit for bit.

use super::*;
use tinkrs_engine::{Activations, CacheFormat, Numerics, TrainingRun};
use tinkrs_types::sampling::{SampledSequence, Stop};
use tinkrs_types::{AdamParams, Datum, LoraConfig, LossFn};

/// An adapter after a few steps on some text, large enough to matter.
fn trained(model: &Arc<Model>) -> TrainingRun {
    let config = LoraConfig {
        seed: Some(3),
        ..LoraConfig::new(8)
    };
    let mut run = TrainingRun::lora(Arc::clone(model), &config).unwrap();
    for step in 0..3 {
        let text = prompt(60, step);
        let datum = Datum::from_prompt_completion(&text[..20], &text[20..]).unwrap();
        run.forward_backward(&[datum], &LossFn::CrossEntropy)
            .unwrap();
        run.optim_step(AdamParams::new(2e-2)).unwrap();
    }
    run
}

/// What training says about a sampled continuation.
fn forward(run: &TrainingRun, prompt: &[u32], sequence: &SampledSequence) -> Vec<f32> {
    let datum = Datum::from_prompt_completion(prompt, &sequence.tokens).unwrap();
    let output = run.forward(&[datum], &LossFn::CrossEntropy).unwrap();
    output.logprobs(0).unwrap()[prompt.len() - 1..].to_vec()
}

#[test]
fn sampled_log_probabilities_are_those_of_a_training_pass() {
    let model = model();
    let run = trained(&model);
    // Small pieces of prompt and a prefix cache, so that sampling takes another way through the model.
    let settings = SamplerSettings {
        prefill_tokens: 13,
        ..SamplerSettings::default()
    };
    let mut sampler = Sampler::new(Arc::clone(&model), settings);
    let weights = sampler.add_adapter(run.adapter().unwrap()).unwrap();
    let mut tickets = Vec::new();
    for (len, temperature) in [(1, 1.0), (5, 0.0), (90, 1.0), (150, 1.0), (150, 0.0)] {
        let mut request = SampleRequest {
            weights,
            num_samples: 3,
            ..SampleRequest::new(prompt(len, 2), 40)
        };
        request.params.temperature = temperature;
        request.params.stop = Some(Stop::Never);
        tickets.push((sampler.submit(request.clone()).unwrap(), request));
    }
    let outputs = super::run(&mut sampler);
    for (ticket, request) in tickets {
        for sequence in &outputs[&ticket].sequences {
            let expected = forward(&run, &request.prompt, sequence);
            assert_eq!(sequence.logprobs.as_ref().unwrap(), &expected);
        }
    }
}

#[test]
fn every_architecture_samples_what_it_trains_quantised_or_not() {
    let cached = |key_values| Numerics {
        key_values,
        ..Numerics::default()
    };
    let int8 = Numerics {
        weights: Precision::Q8_0,
        activations: Activations::Int8,
        key_values: CacheFormat::Bf16,
    };
    let ways = [
        Precision::Stored.into(),
        int8,
        cached(CacheFormat::Bf16),
        cached(CacheFormat::Q8_0),
    ];
    for (config, numerics) in ModelConfig::tiny_models()
        .into_iter()
        .flat_map(|config| ways.map(|how| (config.clone(), how)))
    {
        let what = format!("{:?}, {numerics:?}", config.architecture);
        let source = RandomWeights::new(config, 7, Dtype::Bf16).unwrap();
        let model = Model::load(&source, numerics, &Threads::new(2).unwrap()).unwrap();
        let model = Arc::new(model);
        let run = trained(&model);
        let settings = SamplerSettings {
            prefill_tokens: 13,
            ..SamplerSettings::default()
        };
        let mut sampler = Sampler::new(Arc::clone(&model), settings);
        let weights = sampler.add_adapter(run.adapter().unwrap()).unwrap();
        let mut tickets = Vec::new();
        for len in [2, 70, 70] {
            let mut request = SampleRequest {
                weights,
                num_samples: 2,
                ..SampleRequest::new(prompt(len, 2), 30)
            };
            request.params.stop = Some(Stop::Never);
            tickets.push((sampler.submit(request.clone()).unwrap(), request));
        }
        let outputs = super::run(&mut sampler);
        for (ticket, request) in tickets {
            for sequence in &outputs[&ticket].sequences {
                let expected = forward(&run, &request.prompt, sequence);
                assert_eq!(sequence.logprobs.as_ref().unwrap(), &expected, "{what}");
            }
        }
    }
}

#[test]
fn prompt_log_probabilities_are_those_of_a_training_pass() {
    let model = model();
    let run = trained(&model);
    let mut sampler = sampler(&model);
    let weights = sampler.add_adapter(run.adapter().unwrap()).unwrap();
    let text = prompt(120, 5);
    let mut request = SampleRequest {
        weights,
        ..SampleRequest::new(text.clone(), 1)
    };
    request.options.prompt_logprobs = true;
    let got = sample(&mut sampler, request).prompt_logprobs.unwrap();
    let datum = Datum::from_prompt_completion(&text[..1], &text[1..]).unwrap();
    let output = run.forward(&[datum], &LossFn::CrossEntropy).unwrap();
    assert_eq!(got[1..], *output.logprobs(0).unwrap());
}

#[test]
fn a_snapshot_keeps_its_weights_while_training_goes_on() {
    let model = model();
    let mut run = trained(&model);
    let mut sampler = sampler(&model);
    let weights = sampler.add_adapter(run.adapter().unwrap()).unwrap();
    let request = SampleRequest {
        weights,
        ..SampleRequest::new(prompt(30, 1), 20)
    };
    let before = sample(&mut sampler, request.clone());
    let datum = Datum::from_prompt_completion(&[1, 2, 3], &[4, 5, 6]).unwrap();
    run.forward_backward(&[datum], &LossFn::CrossEntropy)
        .unwrap();
    run.optim_step(AdamParams::new(1e-1)).unwrap();
    assert_eq!(
        sample(&mut sampler, request.clone()).sequences,
        before.sequences
    );

    let newer = sampler.add_adapter(run.adapter().unwrap()).unwrap();
    let after = sample(
        &mut sampler,
        SampleRequest {
            weights: newer,
            ..request
        },
    );
    assert_ne!(after.sequences[0].logprobs, before.sequences[0].logprobs);
}
