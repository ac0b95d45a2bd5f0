use super::*;

fn tensor<'a>(name: &'a str, values: &'a mut [f32], gradient: &'a [f32]) -> Trained<'a> {
    Trained {
        name,
        values,
        gradient,
    }
}

/// The formula of the module's documentation for one element, in f64.
fn reference_step(params: &AdamParams, step: i32, state: [f64; 3], g: f64) -> [f64; 3] {
    let [p, m, v] = state;
    let p = p * (1.0 - params.learning_rate * params.weight_decay);
    let m = params.beta1 * m + (1.0 - params.beta1) * g;
    let v = params.beta2 * v + (1.0 - params.beta2) * g * g;
    let m_hat = m / (1.0 - params.beta1.powi(step));
    let v_hat = v / (1.0 - params.beta2.powi(step));
    let p = p - params.learning_rate * m_hat / (v_hat.sqrt() + params.eps);
    [p, m, v]
}

#[test]
fn steps_follow_the_formula_with_parameters_that_change() {
    let mut values = [0.5_f32, -1.25, 2.0];
    let mut expected = values.map(|p| [f64::from(p), 0.0, 0.0]);
    let mut optimizer = AdamW::default();
    let gradients = [[0.1_f32, -2.0, 0.0], [0.3, 1.0, -0.5], [-0.2, 0.5, 4.0]];
    for (index, gradient) in gradients.iter().enumerate() {
        let params = AdamParams {
            learning_rate: 0.01 * (index + 1) as f64,
            weight_decay: 0.1 * index as f64,
            beta1: 0.9 - 0.1 * index as f64,
            eps: 1e-8,
            grad_clip_norm: [0.0, 0.5, 100.0][index],
            ..AdamParams::default()
        };
        let norm = gradient
            .iter()
            .map(|&g| f64::from(g).powi(2))
            .sum::<f64>()
            .sqrt();
        let clip = [1.0, 0.5 / (norm + 1e-6), 1.0][index];
        for (state, &g) in expected.iter_mut().zip(gradient) {
            *state = reference_step(&params, index as i32 + 1, *state, f64::from(g) * clip);
        }
        let before = values;
        let norms = optimizer
            .step(&params, &mut [tensor("w", &mut values, gradient)])
            .unwrap();

        for (value, state) in values.iter().zip(&expected) {
            let error = (f64::from(*value) - state[0]).abs();
            assert!(error < 1e-6, "step {index}: {value}, not {}", state[0]);
        }
        assert!((norms.gradient - norm).abs() < 1e-12);
        assert!((norms.clipped_gradient - norm * clip).abs() < 1e-12);
        let moved = values
            .iter()
            .zip(before)
            .map(|(after, before)| f64::from(after - before).powi(2));
        assert!((norms.update - moved.sum::<f64>().sqrt()).abs() < 1e-7);
    }
    assert_eq!(optimizer.steps, 3);
}

#[test]
fn weight_decay_is_decoupled_from_the_gradient() {
    let mut values = [2.0_f32];
    let params = AdamParams {
        learning_rate: 0.5,
        weight_decay: 0.1,
        ..AdamParams::default()
    };
    AdamW::default()
        .step(&params, &mut [tensor("w", &mut values, &[0.0])])
        .unwrap();
    assert_eq!(values, [2.0 * 0.95]);
}

#[test]
fn the_norm_covers_all_tensors_together() {
    let (mut a, mut b) = ([0.0_f32], [0.0_f32]);
    let params = AdamParams {
        grad_clip_norm: 1.0,
        ..AdamParams::default()
    };
    let mut tensors = [tensor("a", &mut a, &[3.0]), tensor("b", &mut b, &[4.0])];
    let norms = AdamW::default().step(&params, &mut tensors).unwrap();
    assert_eq!(norms.gradient, 5.0);
    assert!((norms.clipped_gradient - 1.0).abs() < 1e-6);
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let len = 5 * BLOCK + 77;
    let gradient: Vec<f32> = (0..len)
        .map(|i| ((i * 37) % 1013) as f32 * 1e-3 - 0.4)
        .collect();
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        let mut values: Vec<f32> = (0..len).map(|i| (i % 97) as f32 * 0.01).collect();
        let mut optimizer = AdamW::default();
        let params = AdamParams {
            grad_clip_norm: 1.0,
            weight_decay: 0.01,
            ..AdamParams::default()
        };
        let mut norms = Vec::new();
        for _ in 0..3 {
            let mut tensors = [tensor("w", &mut values, &gradient)];
            norms.push(
                pool.install(|| optimizer.step(&params, &mut tensors))
                    .unwrap(),
            );
        }
        (values, optimizer, norms)
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}

#[test]
fn a_failed_step_names_the_tensor_and_changes_nothing() {
    let params = AdamParams {
        learning_rate: 0.1,
        ..AdamParams::default()
    };
    let huge = AdamParams {
        learning_rate: 1e39,
        ..AdamParams::default()
    };
    let cases: [(AdamParams, [f32; 2], &str); 3] = [
        (
            params,
            [1.0, f32::NAN],
            "gradient of b holds NaN at element 1",
        ),
        (
            params,
            [1.0, f32::NEG_INFINITY],
            "gradient of b holds -inf at element 1",
        ),
        (huge, [1.0, 1.0], "updated a holds"),
    ];
    let mut a = [1.0_f32, 2.0];
    let mut b = [3.0_f32, 4.0];
    let mut optimizer = AdamW::default();
    let good = [0.5, -0.5];
    let mut tensors = [tensor("a", &mut a, &good), tensor("b", &mut b, &good)];
    optimizer.step(&params, &mut tensors).unwrap();

    let before = (a, b, optimizer.clone());
    for (params, gradient, message) in cases {
        let mut tensors = [tensor("a", &mut a, &good), tensor("b", &mut b, &gradient)];
        let error = optimizer
            .step(&params, &mut tensors)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!((a, b, optimizer.clone()), before, "after {message}");
    }
}

#[test]
fn an_overflowing_square_is_refused_rather_than_freezing_the_weight() {
    let mut values = [1.0_f32];
    let mut tensors = [tensor("w", &mut values, &[1e30])];
    let error = AdamW::default()
        .step(&AdamParams::default(), &mut tensors)
        .unwrap_err();
    assert!(error.to_string().contains("updated w"), "{error}");
    assert_eq!(values, [1.0]);
}

#[test]
fn settings_out_of_range_are_named() {
    let good = AdamParams::default();
    let cases = [
        (
            "learning_rate",
            AdamParams {
                learning_rate: -1e-9,
                ..good
            },
        ),
        (
            "learning_rate",
            AdamParams {
                learning_rate: f64::NAN,
                ..good
            },
        ),
        ("beta1", AdamParams { beta1: 1.0, ..good }),
        (
            "beta2",
            AdamParams {
                beta2: -0.1,
                ..good
            },
        ),
        ("eps", AdamParams { eps: 0.0, ..good }),
        ("eps", AdamParams { eps: 1e-60, ..good }),
        (
            "weight_decay",
            AdamParams {
                weight_decay: f64::INFINITY,
                ..good
            },
        ),
        (
            "grad_clip_norm",
            AdamParams {
                grad_clip_norm: -1.0,
                ..good
            },
        ),
    ];
    for (name, params) in cases {
        let error = check(&params).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    let still = AdamParams {
        learning_rate: 0.0,
        beta1: 0.0,
        beta2: 0.0,
        ..good
    };
    assert!(check(&still).is_ok());
}

#[test]
fn lengths_that_disagree_are_refused_with_both() {
    let mut values = [1.0_f32, 2.0];
    let mut tensors = [tensor("w", &mut values, &[1.0])];
    let error = AdamW::default()
        .step(&AdamParams::default(), &mut tensors)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "gradient of w: expected shape [2], got [1]"
    );
}
