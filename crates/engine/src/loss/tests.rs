//! What all losses share: gradients, masking, weights, and refusals.

use super::inputs::Token;
use super::*;

const LOSSES: [Loss; 6] = [
    Loss::CrossEntropy,
    Loss::ImportanceSampling,
    Loss::Ppo(RatioRange::PPO),
    Loss::Cispo(RatioRange::CISPO),
    Loss::Dro { beta: 0.05 },
    Loss::Gspo(RatioRange::PPO),
];

/// A small generator for test numbers (a linear congruence; only its spread matters).
struct Numbers(u64);

impl Numbers {
    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        low + (high - low) * ((self.0 >> 11) as f64 / (1_u64 << 53) as f64)
    }

    fn tensor(&mut self, len: usize, low: f64, high: f64) -> Vec<f32> {
        (0..len).map(|_| self.uniform(low, high) as f32).collect()
    }
}

/// Compares a term's slope with the central difference of the function it claims to be the slope of.
///
/// `value` is the term as a function of the log-probability, with what is held constant already fixed.
fn assert_slope(name: &str, token: Token, slope: f64, value: impl Fn(f64) -> f64) {
    let h = 1e-5;
    let difference = (value(token.lp + h) - value(token.lp - h)) / (2.0 * h);
    let error = (difference - slope).abs();
    assert!(
        error < 1e-7 * slope.abs().max(1.0),
        "{name}, {token:?}: {slope} or {difference}"
    );
}

#[test]
fn slopes_agree_with_finite_differences() {
    let bounds = RatioRange {
        low: 0.7,
        high: 1.4,
    };
    for seed in 0..5 {
        let mut numbers = Numbers(seed);
        for _ in 0..200 {
            let lp = numbers.uniform(-6.0, -0.01);
            let advantage = numbers.uniform(-2.0, 2.0);
            let token = Token {
                lp,
                q: lp + numbers.uniform(-0.8, 0.8),
                advantage,
            };
            let at = |lp: f64| Token { lp, ..token };

            let term = importance_sampling::term(token);
            assert_slope("importance_sampling", token, term.slope, |lp| {
                importance_sampling::term(at(lp)).value
            });

            let term = dro::term(token, 0.05);
            assert_slope("dro", token, term.slope, |lp| dro::term(at(lp), 0.05).value);

            let term = cispo::term(token, bounds);
            let constant = bounds.clamp(token.ratio());
            assert_slope("cispo", token, term.slope, |lp| -constant * lp * advantage);

            // A difference across a clip edge straddles two slopes; ppo's own tests hold the edges.
            let ratio = token.ratio();
            if [bounds.low, bounds.high]
                .iter()
                .all(|edge| (ratio - edge).abs() > 1e-4)
            {
                let term = ppo::clipped_term(ratio, token, bounds);
                assert_slope("ppo", token, term.slope, |lp| {
                    ppo::clipped_term(at(lp).ratio(), at(lp), bounds).value
                });
                let sequence_ratio = numbers.uniform(0.3, 2.0);
                let term = ppo::clipped_term(sequence_ratio, token, bounds);
                assert_slope("gspo", token, term.slope, |lp| {
                    let ratio = sequence_ratio * (lp - token.lp).exp();
                    ppo::clipped_term(ratio, token, bounds).value
                });
            }
        }
    }
}

#[test]
fn the_gradient_of_a_datum_is_that_of_its_loss() {
    // In f32, over whole datums with weights; gspo and cispo hold parts constant, so they are left to
    // the test above.
    let losses = [
        Loss::CrossEntropy,
        Loss::ImportanceSampling,
        Loss::Ppo(RatioRange {
            low: 1e-6,
            high: 1e6,
        }),
        Loss::Dro { beta: 0.3 },
    ];
    for seed in 0..5 {
        let mut numbers = Numbers(seed);
        let len = 12;
        let mut lp = numbers.tensor(len, -3.0, -0.1);
        let weights = numbers.tensor(len, -1.0, 2.0);
        let logprobs = numbers.tensor(len, -3.0, -0.1);
        let advantages = numbers.tensor(len, -1.0, 1.0);
        let inputs = LossInputs {
            weights: Some(&weights),
            logprobs: Some(&logprobs),
            advantages: Some(&advantages),
            ..LossInputs::default()
        };
        for loss in losses {
            let output = loss.evaluate(&lp, &inputs).unwrap();
            for i in 0..len {
                let original = lp[i];
                let mut at = |value: f32| {
                    lp[i] = value;
                    loss.evaluate(&lp, &inputs).unwrap().loss
                };
                let (above, below) = (original + 1e-3, original - 1e-3);
                let difference = (at(above) - at(below)) / f64::from(above - below);
                at(original);
                let gradient = f64::from(output.gradient[i]);
                let scale = gradient.abs().max(1.0);
                assert!(
                    (difference - gradient).abs() < 1e-4 * scale,
                    "{loss:?} at {i}, seed {seed}"
                );
            }
        }
    }
}

#[test]
fn masked_positions_contribute_exactly_nothing() {
    let poison = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for loss in LOSSES {
        for bad in poison {
            let lp = [-1.0, bad, bad, -0.5];
            // Position 1 is masked by its weight, position 2 by its advantage (and, for the loss
            // without advantages, by its weight too).
            let last = if loss == Loss::CrossEntropy { 0.0 } else { 1.0 };
            let inputs = LossInputs {
                weights: Some(&[1.0, 0.0, last, 1.0]),
                logprobs: Some(&[-1.1, bad, bad, -0.5]),
                advantages: Some(&[1.0, 1.0, 0.0, -1.0]),
                sequence_ratio_mask: Some(&[1.0, 0.0, 0.0, 1.0]),
                ..LossInputs::default()
            };
            let masked = loss.evaluate(&lp, &inputs).unwrap();
            let alone = LossInputs {
                logprobs: Some(&[-1.1, -0.5]),
                advantages: Some(&[1.0, -1.0]),
                sequence_ratio_mask: Some(&[1.0, 1.0]),
                ..LossInputs::default()
            };
            let expected = loss.evaluate(&[-1.0, -0.5], &alone).unwrap();
            assert_eq!(masked.loss, expected.loss, "{loss:?} with {bad}");
            assert_eq!(masked.gradient[1..3], [0.0, 0.0], "{loss:?} with {bad}");
            assert_eq!(masked.gradient[0], expected.gradient[0]);
            assert_eq!(masked.metrics, expected.metrics, "{loss:?} with {bad}");
        }
    }
}

#[test]
fn weights_scale_loss_and_gradient_of_every_loss() {
    for loss in LOSSES {
        let inputs = LossInputs {
            logprobs: Some(&[-1.1, -0.4]),
            advantages: Some(&[1.0, -1.0]),
            sequence_ratio_mask: Some(&[1.0, 1.0]),
            ..LossInputs::default()
        };
        let plain = loss.evaluate(&[-1.0, -0.5], &inputs).unwrap();
        let weighted = LossInputs {
            weights: Some(&[2.0, 2.0]),
            ..inputs
        };
        let doubled = loss.evaluate(&[-1.0, -0.5], &weighted).unwrap();
        assert_eq!(doubled.loss, 2.0 * plain.loss, "{loss:?}");
        let gradient: Vec<f32> = plain.gradient.iter().map(|g| 2.0 * g).collect();
        assert_eq!(doubled.gradient, gradient, "{loss:?}");
    }
}

#[test]
fn non_finite_numbers_that_count_are_named() {
    let inputs = LossInputs {
        logprobs: Some(&[-1.0, -1.0]),
        advantages: Some(&[1.0, 1.0]),
        sequence_ratio_mask: Some(&[1.0, 1.0]),
        ..LossInputs::default()
    };
    for loss in LOSSES {
        let error = loss
            .evaluate(&[0.0, f32::NAN], &inputs)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("model log-prob") && error.contains("position 1"),
            "{error}"
        );
        let weights = LossInputs {
            weights: Some(&[f32::INFINITY, 1.0]),
            ..inputs
        };
        let error = loss
            .evaluate(&[0.0, 0.0], &weights)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("weights") && error.contains("position 0"),
            "{loss:?}: {error}"
        );
        if loss != Loss::CrossEntropy {
            let logprobs = LossInputs {
                logprobs: Some(&[f32::NAN, 0.0]),
                ..inputs
            };
            let error = loss
                .evaluate(&[0.0, 0.0], &logprobs)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("position 0: logprobs is NaN"),
                "{loss:?}: {error}"
            );
        }
    }
}

#[test]
fn missing_and_missized_tensors_are_named() {
    let complete = LossInputs {
        weights: Some(&[1.0]),
        logprobs: Some(&[-1.0]),
        advantages: Some(&[1.0]),
        sequence_ratio_mask: Some(&[1.0]),
        ..LossInputs::default()
    };
    let long: Option<&[f32]> = Some(&[1.0, 1.0]);
    for loss in LOSSES.into_iter().skip(1) {
        let cases = [
            (
                "logprobs",
                LossInputs {
                    logprobs: None,
                    ..complete
                },
            ),
            (
                "logprobs",
                LossInputs {
                    logprobs: long,
                    ..complete
                },
            ),
            (
                "advantages",
                LossInputs {
                    advantages: None,
                    ..complete
                },
            ),
            (
                "advantages",
                LossInputs {
                    advantages: long,
                    ..complete
                },
            ),
            (
                "weights",
                LossInputs {
                    weights: long,
                    ..complete
                },
            ),
            (
                "clip_low_threshold",
                LossInputs {
                    clip_low_threshold: long,
                    ..complete
                },
            ),
            (
                "clip_high_threshold",
                LossInputs {
                    clip_high_threshold: long,
                    ..complete
                },
            ),
        ];
        for (name, inputs) in cases {
            let error = loss.evaluate(&[-1.0], &inputs).unwrap_err().to_string();
            assert!(error.contains(name), "{loss:?} without {name}: {error}");
        }
    }
    let unmasked = LossInputs {
        sequence_ratio_mask: None,
        ..complete
    };
    let error = Loss::Gspo(RatioRange::PPO)
        .evaluate(&[-1.0], &unmasked)
        .unwrap_err();
    assert!(error.to_string().contains("sequence_ratio_mask"), "{error}");
}

#[test]
fn policy_metrics_describe_the_step_away_from_the_sampler() {
    let inputs = LossInputs {
        logprobs: Some(&[0.0, 0.0, 0.0]),
        advantages: Some(&[1.0, 1.0, 0.0]),
        ..LossInputs::default()
    };
    let lp = [2.0_f32.ln(), 0.0, 7.0];
    let metrics = Loss::Ppo(RatioRange::PPO)
        .evaluate(&lp, &inputs)
        .unwrap()
        .metrics;
    let kl = (1.0 - 2.0_f64.ln()) / 2.0;
    let cases = [
        ("ratio:mean", 1.5),
        ("ratio:max", 2.0),
        ("kl_sampler:mean", kl),
        ("clip_fraction:mean", 0.5),
    ];
    for (name, expected) in cases {
        let got = metrics.get(name).unwrap();
        assert!(
            (got - expected).abs() < 1e-6,
            "{name}: {got}, not {expected}"
        );
    }
    let unchanged = LossInputs {
        advantages: Some(&[0.0, 0.0, 0.0]),
        ..inputs
    };
    let metrics = Loss::ImportanceSampling
        .evaluate(&lp, &unchanged)
        .unwrap()
        .metrics;
    assert_eq!(metrics.get("ratio:mean"), Some(1.0));
    assert_eq!(metrics.get("clip_fraction:mean"), None);
}

#[test]
fn settings_have_the_documented_defaults() {
    let none = tinkrs_types::training::ClipBounds::default();
    let high = tinkrs_types::training::ClipBounds {
        low: None,
        high: Some(1.5),
    };
    let cases = [
        (LossFn::CrossEntropy, Loss::CrossEntropy),
        (
            LossFn::Ppo(none),
            Loss::Ppo(RatioRange {
                low: 0.8,
                high: 1.2,
            }),
        ),
        (
            LossFn::Ppo(high),
            Loss::Ppo(RatioRange {
                low: 0.8,
                high: 1.5,
            }),
        ),
        (
            LossFn::Cispo(none),
            Loss::Cispo(RatioRange {
                low: 0.0,
                high: 4.0,
            }),
        ),
        (
            LossFn::Gspo(none),
            Loss::Gspo(RatioRange {
                low: 0.8,
                high: 1.2,
            }),
        ),
        (LossFn::Dro { beta: Some(0.05) }, Loss::Dro { beta: 0.05 }),
    ];
    for (given, expected) in cases {
        assert_eq!(Loss::new(&given).unwrap(), expected, "{given:?}");
    }
}

#[test]
fn settings_that_make_no_loss_are_named() {
    let crossed = tinkrs_types::training::ClipBounds::new(2.0, 1.0);
    let cases = [
        (LossFn::Dro { beta: None }, "loss_fn_config.beta"),
        (
            LossFn::Dro {
                beta: Some(f64::NAN),
            },
            "loss_fn_config.beta",
        ),
        (LossFn::Ppo(crossed), "loss_fn_config.clip_low_threshold"),
        (
            LossFn::StableReinforce { kl_coeff: None },
            "stable_reinforce",
        ),
    ];
    for (loss, name) in cases {
        let error = Loss::new(&loss).unwrap_err().to_string();
        assert!(error.contains(name), "{loss:?}: {error}");
    }
}
