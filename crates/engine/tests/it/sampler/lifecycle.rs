//! Streaming, stopping, caching, cancelling, refusing, failing.

use super::*;
use tinkrs_engine::Error;
use tinkrs_engine::sample::Detokenizer;
use tinkrs_types::sampling::{Stop, StopReason};

#[test]
fn tokens_are_reported_as_they_come() {
    let model = model();
    let mut sampler = sampler(&model);
    let request = SampleRequest {
        num_samples: 2,
        ..SampleRequest::new(prompt(5, 1), 6)
    };
    sampler.submit(request).unwrap();
    let mut streamed = [Vec::new(), Vec::new()];
    let mut finished = None;
    while !sampler.is_idle() {
        for event in sampler.step() {
            match event {
                Event::Token {
                    sample,
                    token,
                    logprob,
                    ..
                } => streamed[sample].push((token, logprob)),
                Event::Finished { output, .. } => finished = Some(output),
                _ => panic!("{event:?}"),
            }
        }
    }
    for (streamed, sequence) in streamed.iter().zip(&finished.unwrap().sequences) {
        let logprobs = sequence.logprobs.as_ref().unwrap();
        let result: Vec<(u32, f32)> = sequence
            .tokens
            .iter()
            .copied()
            .zip(logprobs.iter().copied())
            .collect();
        assert_eq!(*streamed, result);
    }
}

#[test]
fn the_prefix_cache_stays_within_its_bound_and_reports_hits() {
    let model = model();
    let block = KvCache::bytes_for(&model, 64);
    let settings = SamplerSettings {
        prefix_cache_bytes: 5 * block,
        ..SamplerSettings::default()
    };
    let mut sampler = Sampler::new(Arc::clone(&model), settings);
    for seed in 0..8 {
        sample(&mut sampler, SampleRequest::new(prompt(200, seed), 2));
        assert!(sampler.prefix_cache_bytes() <= 5 * block);
        assert_eq!(sampler.request_bytes(), 0);
    }
    assert!(sampler.prefix_cache_bytes() > 0);
    let again = sample(&mut sampler, SampleRequest::new(prompt(200, 7), 2));
    assert_eq!(again.prompt_cache_hit_tokens, 192);
    let exact = sample(&mut sampler, SampleRequest::new(prompt(192, 7), 2));
    assert_eq!(
        exact.prompt_cache_hit_tokens, 128,
        "the last token is always computed"
    );
}

#[test]
fn a_conversation_finds_its_last_turn_in_the_cache() {
    let model = model();
    let mut sampler = sampler(&model);
    let first = prompt(100, 3);
    let mut request = SampleRequest::new(first.clone(), 60);
    request.params.stop = Some(Stop::Never);
    let answer = sample(&mut sampler, request).sequences.remove(0).tokens;
    let second = [first, answer, prompt(10, 4)].concat();
    let output = sample(&mut sampler, SampleRequest::new(second, 1));
    assert_eq!(output.prompt_cache_hit_tokens, 128);
}

#[test]
fn cancelling_frees_memory_and_leaves_others_alone() {
    let model = model();
    let mut sampler = sampler(&model);
    let kept = SampleRequest::new(prompt(30, 1), 12);
    let expected = sample(&mut sampler, kept.clone());

    let doomed = sampler
        .submit(SampleRequest {
            num_samples: 4,
            ..SampleRequest::new(prompt(300, 2), 100)
        })
        .unwrap();
    let kept = sampler.submit(kept).unwrap();
    for _ in 0..5 {
        sampler.step();
    }
    let before = sampler.request_bytes();
    assert!(sampler.cancel(doomed));
    assert!(sampler.request_bytes() < before / 2);
    assert!(!sampler.cancel(doomed), "gone already");
    let outputs = run(&mut sampler);
    assert_eq!(outputs.keys().collect::<Vec<_>>(), [&kept]);
    assert_eq!(outputs[&kept].sequences, expected.sequences);
    assert_eq!(sampler.request_bytes(), 0);
}

/// Token `t` stands for the letter `a + t mod 26`.
struct Letters(Vec<[u8; 1]>);

impl Detokenizer for Letters {
    fn token_bytes(&self, token: u32) -> &[u8] {
        &self.0[token as usize]
    }
}

#[test]
fn stop_texts_are_found_across_tokens() {
    let model = model();
    let vocab = model.config().vocab;
    let letters = Letters(
        (0..vocab)
            .map(|token| [b'a' + (token % 26) as u8])
            .collect(),
    );
    let mut sampler = sampler(&model).with_detokenizer(Arc::new(letters));
    let mut request = SampleRequest::new(prompt(10, 9), 60);
    request.params.stop = Some(Stop::Never);
    let free = sample(&mut sampler, request.clone()).sequences.remove(0);
    assert_eq!(
        (free.tokens.len(), free.stop_reason),
        (60, StopReason::Length)
    );

    let text: String = free
        .tokens
        .iter()
        .map(|token| char::from(b'a' + (token % 26) as u8))
        .collect();
    let stop = &text[40..43];
    let first = text.find(stop).unwrap();
    request.params.stop = Some(Stop::from(stop));
    let stopped = sample(&mut sampler, request).sequences.remove(0);
    assert_eq!(stopped.stop_reason, StopReason::Stop);
    assert_eq!(stopped.tokens, free.tokens[..first + 3]);
    assert_eq!(
        stopped.logprobs.unwrap(),
        free.logprobs.unwrap()[..first + 3]
    );
}

#[test]
fn requests_that_cannot_run_are_refused_by_name() {
    let model = model();
    let settings = SamplerSettings {
        queued_requests: 1,
        ..SamplerSettings::default()
    };
    let mut sampler = Sampler::new(Arc::clone(&model), settings);
    let stranger = {
        let mut other = Sampler::new(Arc::clone(&model), settings);
        other.add_adapter(adapter(&model, 1)).unwrap()
    };
    let mut text = SampleRequest::new([1], 4);
    text.params.stop = Some(Stop::from("x"));
    let cases = [
        ("500 + 13 > 512", SampleRequest::new(prompt(500, 1), 13)),
        (
            "weights",
            SampleRequest {
                weights: stranger,
                ..SampleRequest::new([1], 4)
            },
        ),
        ("stop", text),
        ("prompt", SampleRequest::new([1, 1_000_000], 4)),
    ];
    for (name, request) in cases {
        let error = sampler.submit(request).unwrap_err();
        assert!(
            error.is_bad_request() && error.to_string().contains(name),
            "{name}: {error}"
        );
    }
    sampler.submit(SampleRequest::new([1], 4)).unwrap();
    let error = sampler.submit(SampleRequest::new([1], 4)).unwrap_err();
    assert!(matches!(error, Error::QueueFull { limit: 1 }), "{error}");
    assert_eq!(run(&mut sampler).len(), 1);
}

#[test]
fn a_request_that_fails_does_not_touch_the_others() {
    let model = model();
    let mut sampler = sampler(&model);
    let expected = sample(&mut sampler, SampleRequest::new(prompt(30, 1), 12));
    let broken = sampler
        .add_adapter(adapter_of(&model, |_| f32::NAN))
        .unwrap();
    let good = sampler
        .submit(SampleRequest::new(prompt(30, 1), 12))
        .unwrap();
    let bad = SampleRequest {
        weights: broken,
        num_samples: 3,
        ..SampleRequest::new(prompt(30, 1), 12)
    };
    let bad = sampler.submit(bad).unwrap();
    let (mut failed, mut finished) = (Vec::new(), Vec::new());
    while !sampler.is_idle() {
        for event in sampler.step() {
            match event {
                Event::Failed { ticket, error } => failed.push((ticket, error.to_string())),
                Event::Finished { ticket, output } => finished.push((ticket, output.sequences)),
                _ => {}
            }
        }
    }
    assert_eq!(finished, [(good, expected.sequences)]);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, bad);
    assert!(failed[0].1.contains("logits"), "{}", failed[0].1);
}

#[test]
fn a_removed_adapter_finishes_what_it_began_and_takes_nothing_new() {
    let model = model();
    let mut sampler = sampler(&model);
    let adapter = adapter(&model, 4);
    let first = sampler.add_adapter(Arc::clone(&adapter)).unwrap();
    let request = |weights| SampleRequest {
        weights,
        ..SampleRequest::new(prompt(100, 1), 8)
    };
    let expected = sample(&mut sampler, request(first));
    assert!(sampler.prefix_cache_bytes() > 0);

    let ticket = sampler.submit(request(first)).unwrap();
    sampler.step();
    sampler.remove_adapter(first);
    assert_eq!(run(&mut sampler)[&ticket].sequences, expected.sequences);
    assert_eq!(sampler.prefix_cache_bytes(), 0);
    assert!(sampler.submit(request(first)).is_err());

    let again = sampler.add_adapter(adapter).unwrap();
    assert_ne!(first, again);
    let output = sample(&mut sampler, request(again));
    assert_eq!(output.sequences, expected.sequences);
}

#[test]
fn running_requests_stay_within_their_memory() {
    let model = model();
    let block = KvCache::bytes_for(&model, 64);
    let settings = SamplerSettings {
        cache_bytes: 8 * block,
        prefix_cache_bytes: 0,
        ..SamplerSettings::default()
    };
    let mut sampler = Sampler::new(Arc::clone(&model), settings);
    let mut tickets = Vec::new();
    for seed in 0..6 {
        let request = SampleRequest {
            num_samples: 3,
            ..SampleRequest::new(prompt(64, seed), 64)
        };
        tickets.push(sampler.submit(request).unwrap());
    }
    let mut finished = Vec::new();
    while !sampler.is_idle() {
        for event in sampler.step() {
            if let Event::Finished { ticket, .. } = event {
                finished.push(ticket);
            }
        }
        assert!(sampler.request_bytes() <= 8 * block);
    }
    finished.sort_unstable();
    assert_eq!(finished, tickets);
}

#[test]
fn a_sampler_can_move_to_a_thread_of_its_own() {
    let mut sampler = sampler(&model());
    sampler.submit(SampleRequest::new(prompt(5, 1), 2)).unwrap();
    let outputs = std::thread::spawn(move || run(&mut sampler))
        .join()
        .unwrap();
    assert_eq!(outputs.len(), 1);
}
