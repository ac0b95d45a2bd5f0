//! Drawing tokens otherwise than the Tinker API can ask for.

use super::*;
use tinkrs_backend::{Constraint, EndOfSequence, Grammar, SamplingExtras, TokenMask};
use tinkrs_types::sampling::{SampledSequence, Stop, StopReason};

fn request(extras: SamplingExtras) -> SampleRequest {
    SampleRequest {
        num_samples: 3,
        fallback_seed: 5,
        extras: Arc::new(extras),
        ..SampleRequest::new(prompt(40, 4), 12)
    }
}

fn sequences(request: SampleRequest) -> Vec<SampledSequence> {
    sample(&mut sampler(&model()), request).sequences
}

#[test]
fn extras_that_change_nothing_give_the_same_bits() {
    let plain = sequences(request(SamplingExtras::default()));
    for temperature in [0.0, 0.7, 1.0] {
        let with = |extras| {
            let mut request = request(extras);
            request.params.temperature = temperature;
            request.params.top_p = 0.9;
            request.options.topk_sample_logprobs = 2;
            sequences(request)
        };
        let neutral = SamplingExtras {
            logit_bias: vec![(5, 0.0)],
            ..SamplingExtras::default()
        };
        let expected = with(SamplingExtras::default());
        assert_eq!(with(neutral), expected, "temperature {temperature}");
        assert_ne!(expected, plain);
    }
}

#[test]
fn a_bias_moves_tokens_and_not_what_is_reported_of_them() {
    let wanted = 17;
    let extras = SamplingExtras {
        logit_bias: vec![(wanted, 100.0)],
        ..SamplingExtras::default()
    };
    let sequence = sequences(request(extras)).remove(0);
    assert_eq!(sequence.tokens, [wanted; 12]);
    let logprobs = sequence.logprobs.unwrap();
    let model = model();
    let prompt = prompt(40, 4);
    let mut scored = request(SamplingExtras::default());
    scored.prompt = [&prompt[..], &sequence.tokens].concat();
    scored.options.prompt_logprobs = true;
    let scored = sample(&mut sampler(&model), scored);
    let scores = scored.prompt_logprobs.unwrap();
    assert_eq!(scores[40..], logprobs[..], "those of the model itself");
    assert!(logprobs.iter().all(|logprob| *logprob < -1.0));
}

#[test]
fn a_bias_against_all_tokens_but_two_leaves_those() {
    let vocabulary = config().vocab as u32;
    let others = (0..vocabulary).filter(|token| ![3, 9].contains(token));
    let extras = SamplingExtras {
        logit_bias: others.map(|token| (token, -100.0)).collect(),
        ..SamplingExtras::default()
    };
    for sequence in sequences(request(extras)) {
        assert!(sequence.tokens.iter().all(|token| [3, 9].contains(token)));
    }
}

#[test]
fn a_presence_penalty_makes_greedy_samples_less_repetitive() {
    let distinct = |presence_penalty| {
        let mut request = request(SamplingExtras {
            logit_bias: vec![(17, 8.0), (18, 7.5), (19, 7.0)],
            presence_penalty,
            ..SamplingExtras::default()
        });
        request.params.temperature = 0.0;
        let mut tokens = sequences(request).remove(0).tokens;
        tokens.sort_unstable();
        tokens.dedup();
        tokens.len()
    };
    assert!(distinct(2.0) > distinct(0.0));
}

#[test]
fn a_minimum_of_tokens_and_an_ignored_end_of_sequence_lengthen_samples() {
    let end = SamplingExtras {
        logit_bias: vec![(2, 100.0)],
        ..SamplingExtras::default()
    };
    let lengths = |extras| -> Vec<(usize, StopReason)> {
        let sequences = sequences(request(extras)).into_iter();
        sequences.map(|s| (s.tokens.len(), s.stop_reason)).collect()
    };
    assert_eq!(lengths(end.clone()), [(1, StopReason::Stop); 3]);
    let minimum = SamplingExtras {
        min_tokens: 4,
        ..end.clone()
    };
    assert_eq!(lengths(minimum), [(5, StopReason::Stop); 3]);
    let ignored = SamplingExtras {
        end_of_sequence: EndOfSequence::Ignored,
        ..end.clone()
    };
    assert_eq!(lengths(ignored), [(12, StopReason::Length); 3]);
    let mut listed = request(SamplingExtras {
        end_of_sequence: EndOfSequence::Always,
        ..end
    });
    listed.params.stop = Some(Stop::AnyToken(vec![7]));
    assert_eq!(sequences(listed)[0].tokens, [2], "besides the list");
}

/// Allows tokens that are larger than the one before, from `0` on.
#[derive(Clone, Debug)]
struct Rising {
    next: u32,
    last: u32,
}

impl Grammar for Rising {
    fn begin(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Rising {
    fn allow(&mut self, mask: &mut TokenMask) -> Result<(), tinkrs_backend::Error> {
        (self.next..=self.last).for_each(|token| mask.allow(token));
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<bool, tinkrs_backend::Error> {
        assert!((self.next..=self.last).contains(&token));
        self.next = token + 1;
        Ok(self.next <= self.last)
    }
}

#[test]
fn every_sample_keeps_to_its_own_state_of_the_grammar() {
    let rising = |temperature, max_tokens| {
        let mut request = request(SamplingExtras {
            grammar: Some(Arc::new(Rising { next: 10, last: 30 })),
            ..SamplingExtras::default()
        });
        request.params.temperature = temperature;
        request.params.max_tokens = Some(max_tokens);
        sequences(request)
    };
    for temperature in [0.0, 1.0, 50.0] {
        for sequence in rising(temperature, 50) {
            let tokens = sequence.tokens;
            assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
            // It ends where the grammar does.
            assert_eq!(
                (tokens.last(), sequence.stop_reason),
                (Some(&30), StopReason::Stop)
            );
        }
    }
    let different: Vec<_> = rising(50.0, 50).into_iter().map(|s| s.tokens).collect();
    assert_ne!(different[0], different[1]);
    let short = rising(0.0, 1).remove(0);
    let expected = if short.tokens == [30] {
        StopReason::Stop
    } else {
        StopReason::Length
    };
    assert_eq!(short.stop_reason, expected);
}

#[test]
fn a_grammar_that_fails_ends_its_own_request_only() {
    let model = model();
    let mut sampler = sampler(&model);
    let empty = request(SamplingExtras {
        grammar: Some(Arc::new(Rising { next: 1, last: 0 })),
        ..SamplingExtras::default()
    });
    let bad = sampler.submit(empty).unwrap();
    let good = sampler.submit(request(SamplingExtras::default())).unwrap();
    let (mut failed, mut finished) = (Vec::new(), Vec::new());
    while !sampler.is_idle() {
        for event in sampler.step() {
            match event {
                Event::Failed { ticket, error } => {
                    assert!(error.is_bad_request() && error.to_string().contains("grammar"));
                    failed.push(ticket);
                }
                Event::Finished { ticket, .. } => finished.push(ticket),
                _ => {}
            }
        }
    }
    assert_eq!((failed, finished), (vec![bad], vec![good]));
}

#[test]
fn alternatives_come_with_each_token_and_are_bounded() {
    let mut request = request(SamplingExtras::default());
    request.options.topk_sample_logprobs = 30;
    let mut sampler = sampler(&model());
    sampler.submit(request).unwrap();
    let mut first = Vec::new();
    while !sampler.is_idle() {
        for event in sampler.step() {
            match event {
                Event::Token {
                    sample: 0,
                    alternatives,
                    ..
                } => first.push(alternatives),
                Event::Finished { output, .. } => {
                    let topk = output.sequences[0].topk_logprobs.as_ref().unwrap();
                    for (index, alternatives) in first.iter().enumerate() {
                        let expected: Vec<_> = topk.row(index).unwrap().take(20).collect();
                        assert_eq!(alternatives, &expected);
                    }
                }
                _ => {}
            }
        }
    }
    assert!(!first.is_empty());
}
