use super::*;
use crate::sample::rng::{Purpose, SampleRng};

fn distribution<'a>(
    logits: &'a [f32],
    temperature: f32,
    scratch: &'a mut DistributionScratch,
) -> Distribution<'a> {
    Distribution::new(logits, temperature, scratch).unwrap()
}

fn draw(logits: &[f32], rule: Rule, uniform: f64) -> u32 {
    distribution(
        logits,
        rule.temperature,
        &mut DistributionScratch::default(),
    )
    .draw(&rule, uniform)
}

fn logits(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.37).sin() * 3.0).collect()
}

/// Tokens that a rule can produce, found by sweeping the random number.
fn support(logits: &[f32], rule: Rule) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..2000)
        .map(|i| draw(logits, rule, (f64::from(i) + 0.5) / 2000.0))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[test]
fn draws_follow_the_soft_max() {
    let logits = logits(12);
    for temperature in [0.5_f32, 1.0, 2.0] {
        let weights: Vec<f64> = logits
            .iter()
            .map(|&z| (f64::from(z) / f64::from(temperature)).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        let draws = 20_000;
        let mut counts = [0_u32; 12];
        for position in 0..draws {
            let uniform = SampleRng::new(11, 0).uniform(Purpose::Token, position, 0);
            counts[draw(&logits, Rule::uncut(temperature), uniform) as usize] += 1;
        }
        let statistic: f64 = counts
            .iter()
            .zip(&weights)
            .map(|(&count, weight)| {
                let expected = weight / sum * f64::from(draws);
                (f64::from(count) - expected).powi(2) / expected
            })
            .sum();
        // Eleven degrees of freedom: 31.3 is exceeded once in a thousand by chance; the seed is fixed.
        assert!(statistic < 31.3, "temperature {temperature}: {statistic}");
    }
}

#[test]
fn log_probabilities_are_those_of_the_scaled_soft_max() {
    let logits = logits(700);
    for temperature in [0.0_f32, 0.25, 1.0, 3.0] {
        let scale = if temperature == 0.0 {
            1.0
        } else {
            f64::from(temperature)
        };
        let sum: f64 = logits.iter().map(|&z| (f64::from(z) / scale).exp()).sum();
        let mut scratch = DistributionScratch::default();
        let distribution = distribution(&logits, temperature, &mut scratch);
        for token in [0_u32, 1, 255, 256, 699] {
            let expected = f64::from(logits[token as usize]) / scale - sum.ln();
            let got = f64::from(distribution.logprob(token));
            assert!(
                (got - expected).abs() < 1e-5,
                "T {temperature}, token {token}: {got}, {expected}"
            );
        }
    }
}

#[test]
fn differences_of_log_probabilities_scale_with_the_inverse_temperature() {
    let logits = logits(9);
    let difference = |temperature: f32| {
        let mut scratch = DistributionScratch::default();
        let distribution = distribution(&logits, temperature, &mut scratch);
        distribution.logprob(2) - distribution.logprob(7)
    };
    assert!((difference(0.5) - 2.0 * difference(1.0)).abs() < 1e-5);
    assert!((difference(4.0) - difference(1.0) / 4.0).abs() < 1e-5);
}

#[test]
fn temperature_zero_takes_the_lowest_of_the_largest() {
    let rule = Rule::uncut(0.0);
    assert_eq!(draw(&[0.0, 2.0, 1.0, 2.0], rule, 0.99), 1);
    assert_eq!(draw(&[-1.0], rule, 0.5), 0);
}

#[test]
fn top_k_keeps_the_largest_with_ties_to_lower_ids() {
    let logits = [1.0, 3.0, 2.0, 2.0, 2.0, 0.0];
    for (k, expected) in [
        (1, vec![1]),
        (2, vec![1, 2]),
        (3, vec![1, 2, 3]),
        (6, vec![0, 1, 2, 3, 4, 5]),
    ] {
        let rule = Rule {
            top_k: Some(k),
            ..Rule::uncut(1.0)
        };
        assert_eq!(support(&logits, rule), expected, "k = {k}");
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    // Probabilities 0.5, 0.25, 0.125, 0.125, in the order of tokens 2, 0, 1, 3.
    let logits = [0.25_f32, 0.125, 0.5, 0.125].map(f32::ln);
    let cases = [
        (1e-9, vec![2]), // at least one token is kept
        (0.49, vec![2]),
        (0.51, vec![0, 2]),
        (0.74, vec![0, 2]),
        (0.8, vec![0, 1, 2]), // the tie goes to token 1
        (0.95, vec![0, 1, 2, 3]),
        (1.0, vec![0, 1, 2, 3]),
    ];
    for (top_p, expected) in cases {
        let rule = Rule {
            top_p,
            ..Rule::uncut(1.0)
        };
        assert_eq!(support(&logits, rule), expected, "p = {top_p}");
    }
}

#[test]
fn top_p_applies_to_what_top_k_left() {
    // Of 0.5 and 0.25, the first alone holds two thirds.
    let logits = [0.5_f32, 0.25, 0.125, 0.125].map(f32::ln);
    let rule = Rule {
        top_k: Some(2),
        top_p: 0.6,
        ..Rule::uncut(1.0)
    };
    assert_eq!(support(&logits, rule), [0]);
    assert_eq!(
        support(
            &logits,
            Rule {
                top_k: None,
                ..rule
            }
        ),
        [0, 1]
    );
}

#[test]
fn min_p_keeps_tokens_near_the_likeliest_and_top_p_applies_to_what_it_left() {
    let logits = [0.5_f32, 0.25, 0.125, 0.125].map(f32::ln);
    let cases = [
        (0.0, 1.0, [0, 1, 2, 3].as_slice()),
        (0.3, 1.0, &[0, 1]),
        (0.3, 0.6, &[0]), // of 0.5 and 0.25, the first alone holds two thirds
        (0.0, 0.6, &[0, 1]),
        (1.0, 1.0, &[0]),
    ];
    for (min_p, top_p, expected) in cases {
        let rule = Rule {
            min_p,
            top_p,
            ..Rule::uncut(1.0)
        };
        assert_eq!(support(&logits, rule), expected, "{rule:?}");
    }
    // At a higher temperature the weights are closer to each other.
    let rule = Rule {
        min_p: 0.3,
        ..Rule::uncut(2.0)
    };
    assert_eq!(support(&logits, rule), [0, 1, 2, 3]);
}

#[test]
fn impossible_tokens_are_never_drawn() {
    let mut logits = vec![f32::NEG_INFINITY; 600];
    logits[300] = -5.0;
    logits[599] = -5.0;
    for temperature in [1.0, 1e30] {
        for (top_k, top_p) in [
            (None, 1.0),
            (Some(10), 1.0),
            (None, 0.999),
            (Some(10), 0.999),
        ] {
            let rule = Rule {
                top_k,
                top_p,
                ..Rule::uncut(temperature)
            };
            for uniform in [f64::EPSILON, 0.499, 0.501, 1.0 - f64::EPSILON] {
                let mut scratch = DistributionScratch::default();
                let mut distribution = distribution(&logits, temperature, &mut scratch);
                distribution.drop_impossible();
                let expected = if uniform < 0.5 { 300 } else { 599 };
                assert_eq!(distribution.draw(&rule, uniform), expected, "{rule:?}");
            }
        }
    }
}

#[test]
fn a_nucleus_wider_than_the_first_look_is_complete() {
    let logits = vec![0.0_f32; 1000];
    let rule = Rule {
        top_p: 0.5,
        ..Rule::uncut(1.0)
    };
    assert_eq!(support(&logits, rule), (0..500).collect::<Vec<u32>>());
}

#[test]
fn the_cuts_do_not_change_log_probabilities() {
    let logits = logits(50);
    let mut scratch = DistributionScratch::default();
    let mut distribution = distribution(&logits, 0.7, &mut scratch);
    let before = distribution.logprob(3);
    distribution.draw(
        &Rule {
            top_k: Some(4),
            top_p: 0.9,
            min_p: 0.1,
            ..Rule::uncut(0.7)
        },
        0.3,
    );
    assert_eq!(before, distribution.logprob(3));
}

#[test]
fn likeliest_agrees_with_a_full_sort() {
    let logits: Vec<f32> = (0..5000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) % 97) as f32 * 0.1)
        .collect();
    let mut sorted: Vec<u32> = (0..5000).collect();
    sorted.sort_by(|&a, &b| by_logit(&logits, a, b));
    let mut scratch = DistributionScratch::default();
    let mut distribution = distribution(&logits, 1.0, &mut scratch);
    for k in [1, 2, 20, 64, 65, 300, 4999, 5000, 9000] {
        let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
        distribution.likeliest(k, &mut tokens, &mut logprobs);
        let expected: Vec<u32> = sorted.iter().take(k).copied().collect();
        assert_eq!(tokens, expected, "k = {k}");
        assert!(logprobs.is_sorted_by(|a, b| a >= b), "k = {k}");
        assert_eq!(logprobs[0], distribution.logprob(sorted[0]));
    }
}

#[test]
fn extreme_random_numbers_and_logits_give_tokens_with_weight() {
    let mut spiked = vec![-1e30_f32; 1000];
    spiked[300] = 5.0;
    let (least, largest) = (f64::EPSILON / 2.0, 1.0 - f64::EPSILON / 2.0);
    for uniform in [least, 0.5, largest] {
        for temperature in [1e-30_f32, 1.0, 1e30] {
            let token = draw(&spiked, Rule::uncut(temperature), uniform);
            assert!(
                temperature > 1.0 || token == 300,
                "u = {uniform}, T = {temperature}: {token}"
            );
        }
    }
}

#[test]
fn logits_that_are_not_finite_are_named() {
    for (bad, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let error =
            Distribution::new(&[0.0, bad], 1.0, &mut DistributionScratch::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("sample: logits holds {text} at element 1")
        );
    }
}
