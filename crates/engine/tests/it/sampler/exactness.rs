//! The same request gives the same bits, whatever runs beside it.

use super::*;
use tinkrs_backend::SamplingExtras;
use tinkrs_engine::sample::WeightsId;
use tinkrs_types::sampling::Stop;

/// Sixteen requests that differ in everything: weights, lengths, rules, samples, scores.
fn mixed_requests(adapters: &[WeightsId]) -> Vec<SampleRequest> {
    (0..16_u32)
        .map(|i| {
            let shared = prompt(130, 1);
            let mut tokens = shared[..(8 * i) as usize].to_vec();
            tokens.extend(prompt(3 + i as usize, i));
            let mut request = SampleRequest {
                weights: adapters[i as usize % adapters.len()],
                num_samples: 1 + i % 3,
                fallback_seed: 1000 + u64::from(i),
                ..SampleRequest::new(tokens, 5 + i % 7)
            };
            request.params.temperature = [1.0, 0.0, 0.7, 1.5][i as usize % 4];
            request.params.top_k = [-1, -1, 20][i as usize % 3];
            request.params.top_p = [1.0, 0.9][i as usize % 2];
            request.extras = Arc::new(SamplingExtras {
                min_p: [0.0, 0.02][i as usize / 2 % 2],
                frequency_penalty: [0.0, 0.0, 1.5][i as usize % 3],
                ..SamplingExtras::default()
            });
            request.params.stop = (i % 5 == 0).then_some(Stop::Never);
            request.options.topk_sample_logprobs = i % 4;
            request.options.prompt_logprobs = i % 6 == 1;
            request.options.prompt_alt_tokens_k = u32::from(i % 7 == 3);
            request
        })
        .collect()
}

/// Everything in a result except how much of it came from the cache, with bits instead of numbers so
/// that NaN equals itself.
fn bits(output: &SampleOutput) -> String {
    let numbers = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let sequences: Vec<_> = output
        .sequences
        .iter()
        .map(|sequence| {
            let topk = sequence.topk_logprobs.as_ref();
            (
                &sequence.tokens,
                numbers(sequence.logprobs.as_deref().unwrap()),
                sequence.stop_reason,
                topk.map(|topk| (topk.token_ids(), numbers(topk.logprobs()))),
            )
        })
        .collect();
    let prompt = output.prompt_logprobs.as_deref().map(numbers);
    format!("{sequences:?} {prompt:?} {:?}", output.prompt_alt_tokens)
}

#[test]
fn results_do_not_depend_on_the_batch_the_cache_or_the_threads() {
    let model = model();
    let adapters = [adapter(&model, 1), adapter(&model, 2)];
    let settings = |prefix_cache_bytes, prefill_tokens| SamplerSettings {
        running_samples: 9,
        prefill_tokens,
        prefix_cache_bytes,
        ..SamplerSettings::default()
    };
    let with_adapters = |model: &Arc<Model>, settings| {
        let mut sampler = Sampler::new(Arc::clone(model), settings);
        let mut known = vec![WeightsId::BASE];
        known.extend(
            adapters
                .iter()
                .map(|a| sampler.add_adapter(Arc::clone(a)).unwrap()),
        );
        (sampler, known)
    };
    let (mut alone, known) = with_adapters(&model, settings(0, 1000));
    let expected: Vec<String> = mixed_requests(&known)
        .into_iter()
        .map(|request| bits(&sample(&mut alone, request)))
        .collect();
    assert_eq!(alone.prefix_cache_bytes(), 0);

    let three_threads = model_with_threads(3);
    for (name, model, settings) in [
        ("a batch", &model, settings(0, 1000)),
        ("a batch with small pieces", &model, settings(0, 7)),
        (
            "a batch with a prefix cache",
            &model,
            settings(64 << 20, 100),
        ),
        ("three threads", &three_threads, settings(64 << 20, 33)),
        (
            "guesses of what comes next",
            &model,
            SamplerSettings {
                draft_tokens: 50,
                ..settings(64 << 20, 33)
            },
        ),
    ] {
        let (mut sampler, known) = with_adapters(model, settings);
        // Twice, so that the second round finds everything in the cache.
        for round in 0..2 {
            let tickets: Vec<Ticket> = mixed_requests(&known)
                .into_iter()
                .map(|request| sampler.submit(request).unwrap())
                .collect();
            let outputs = run(&mut sampler);
            let mut hits = 0;
            for (index, (ticket, expected)) in tickets.iter().zip(&expected).enumerate() {
                hits += outputs[ticket].prompt_cache_hit_tokens;
                assert_eq!(
                    &bits(&outputs[ticket]),
                    expected,
                    "request {index} in {name}, round {round}"
                );
            }
            let has_cache = settings.prefix_cache_bytes > 0;
            assert_eq!(
                hits > 0 && round == 1,
                has_cache && round == 1,
                "{name}: {hits} hits"
            );
        }
    }
}

#[test]
fn guesses_save_steps_and_change_nothing_and_nothing_is_held_for_wrong_ones() {
    let model = model();
    // A cycle, which greedy samples of a small model run into as well, and a sample that is surprised again and again.
    let cycle: Vec<u32> = prompt(9, 2).repeat(5);
    let requests = [0.0, 0.5, 1.5].map(|temperature| {
        let mut request = SampleRequest::new(cycle.clone(), 150);
        request.params.temperature = temperature;
        request.params.stop = Some(Stop::Never);
        request.options.topk_sample_logprobs = 2;
        request
    });
    let run = |draft_tokens: usize| {
        let settings = SamplerSettings {
            draft_tokens,
            prefix_cache_bytes: 0,
            ..SamplerSettings::default()
        };
        let mut sampler = Sampler::new(Arc::clone(&model), settings);
        requests.clone().map(|request| {
            let ticket = sampler.submit(request).unwrap();
            let (mut steps, mut tokens, mut result) = (0, Vec::new(), None);
            while !sampler.is_idle() {
                steps += 1;
                for event in sampler.step() {
                    match event {
                        Event::Token {
                            token,
                            logprob,
                            alternatives,
                            ..
                        } => {
                            tokens.push((token, logprob.to_bits(), alternatives));
                        }
                        Event::Finished { output, .. } => result = Some(bits(&output)),
                        Event::Failed { error, .. } => panic!("{ticket:?}: {error}"),
                        _ => {}
                    }
                }
                let held = cycle.len() + tokens.len();
                assert!(
                    sampler.request_bytes() <= KvCache::bytes_for(&model, held),
                    "{held} tokens"
                );
            }
            (steps, tokens, result.unwrap())
        })
    };
    let (plain, drafted) = (run(0), run(8));
    for (plain, drafted) in plain.iter().zip(&drafted) {
        assert_eq!(plain.1, drafted.1);
        assert_eq!(plain.2, drafted.2);
        assert!(drafted.0 <= plain.0);
    }
    let (steps, without) = (drafted[0].0, plain[0].0);
    assert!(
        3 * steps < 2 * without,
        "{steps} steps instead of {without}"
    );
}

#[test]
fn samples_of_one_request_differ_and_do_not_depend_on_their_number() {
    let model = model();
    let mut sampler = sampler(&model);
    let request = |num_samples| SampleRequest {
        num_samples,
        fallback_seed: 77,
        ..SampleRequest::new(prompt(40, 4), 10)
    };
    let many = sample(&mut sampler, request(6)).sequences;
    let few = sample(&mut sampler, request(2)).sequences;
    assert_eq!(many[..2], few[..]);
    for (index, sequence) in many.iter().enumerate() {
        assert!(
            !many[..index]
                .iter()
                .any(|other| other.tokens == sequence.tokens),
            "sample {index}"
        );
    }
}
