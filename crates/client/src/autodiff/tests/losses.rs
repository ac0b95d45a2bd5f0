//! Whole losses, as a caller writes them.

use crate::BoxError;
use crate::autodiff::{self, Var};
use crate::training::CustomLoss;
use tinkrs_types::protocol::key;
use tinkrs_types::training::{LossInputs, Metrics};
use tinkrs_types::{Datum, TensorData};

fn datum(weights: &[f32]) -> Datum {
    let tokens = vec![1_u32; weights.len()];
    let targets: Vec<i64> = (0..weights.len() as i64).collect();
    Datum::supervised(tokens, targets, weights).unwrap()
}

/// Evaluates `Σ w·lp` losses and the like, whose metrics nobody needs.
fn run(
    data: &[Datum],
    logprobs: &[&[f32]],
    loss: impl for<'t> FnOnce(&[Datum], &[Var<'t>]) -> Var<'t>,
) -> Result<CustomLoss, BoxError> {
    autodiff::loss(|data, logprobs| Ok((loss(data, logprobs), Metrics::new())))(data, logprobs)
}

#[test]
fn cross_entropy_has_the_negated_weights_as_gradient_bit_by_bit() {
    let data = [datum(&[0.1, 0.0, 0.7]), datum(&[1.0])];
    let logprobs: [&[f32]; 2] = [&[-0.3, -2.0, -0.9], &[-4.0]];
    let result = autodiff::loss(|data, logprobs| {
        let nll = |(datum, lp): (&Datum, &Var<'_>)| lp.input(datum, "weights").dot(lp).value();
        let seen: f64 = data.iter().zip(logprobs).map(nll).sum();
        let shares = data.iter().zip(logprobs);
        let loss = -shares
            .map(|(datum, lp)| (lp * lp.input(datum, "weights")).sum())
            .sum::<Var<'_>>();
        Ok((loss, Metrics::from([("seen:sum".to_owned(), seen)])))
    })(&data, &logprobs);
    let result = result.unwrap();
    assert_eq!(result.gradients, [vec![-0.1, 0.0, -0.7], vec![-1.0]]);
    let expected = 0.1_f32 as f64 * 0.3_f32 as f64 + 0.7_f32 as f64 * 0.9_f32 as f64 + 4.0;
    assert!((result.loss - expected).abs() < 1e-12, "{}", result.loss);
    assert!((result.metrics["seen:sum"] + expected).abs() < 1e-12);
}

#[test]
fn a_pairwise_preference_loss_has_its_closed_form() {
    let data = [datum(&[1.0, 1.0]), datum(&[1.0])];
    let logprobs: [&[f32]; 2] = [&[-0.5, -0.25], &[-2.0]];
    let beta = 0.4;
    let result = run(&data, &logprobs, |_, lp| {
        -(beta * (lp[0].sum() - lp[1].sum())).log_sigmoid()
    });
    let result = result.unwrap();
    let margin = beta * (-0.75 + 2.0);
    assert!((result.loss - (-margin).exp().ln_1p()).abs() < 1e-12);
    let slope = (beta / (1.0 + margin.exp())) as f32;
    assert_eq!(result.gradients, [vec![-slope, -slope], vec![slope]]);
}

#[test]
fn candidates_come_as_rows_and_vectors_go_with_the_rows() {
    let targets = TensorData::with_shape(vec![1_i64, 2, 3, 4, 5, 6], [2, 3]).unwrap();
    let inputs = LossInputs::from([
        (key::TARGET_TOKENS.to_owned(), targets),
        ("temperature".to_owned(), vec![1.0_f32, 10.0].into()),
    ]);
    let data = [Datum::new(vec![7, 8], inputs).unwrap()];
    let logprobs: [&[f32]; 1] = [&[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]];
    let result = run(&data, &logprobs, |data, lp| {
        let scaled = lp[0] * lp[0].input(&data[0], "temperature");
        scaled.sum_last().index(1)
    });
    let result = result.unwrap();
    assert_eq!(result.loss, -150.0);
    assert_eq!(result.gradients, [[0.0, 0.0, 0.0, 10.0, 10.0, 10.0]]);
}

#[test]
fn a_datum_that_the_loss_ignores_is_an_error_unless_on_purpose() {
    let data = [datum(&[1.0]), datum(&[1.0])];
    let logprobs: [&[f32]; 2] = [&[-1.0], &[-1.0]];
    let ignored: [(&str, super::Expression); 3] = [
        ("unused", |lp| lp[0].sum()),
        ("detached", |lp| (lp[0] * lp[1].detach()).sum()),
        ("only a mask", |lp| lp[1].select(lp[0], 0.0).sum()),
    ];
    for (name, loss) in ignored {
        let error = run(&data, &logprobs, |_, lp| loss(lp))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("datum 1: `logprobs`: found no gradient"),
            "{name}: {error}"
        );
    }
    let error = run(&data, &logprobs, |_, _| 1.0.into())
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("datum 0: "), "{error}");
    let result = run(&data, &logprobs, |_, lp| (lp[0] + 0.0 * lp[1]).sum()).unwrap();
    assert_eq!(result.gradients, [[1.0], [0.0]]);
}

#[test]
fn errors_of_the_data_and_of_the_caller_come_through() {
    let data = [datum(&[1.0, 1.0])];
    let logprobs: [&[f32]; 1] = [&[-1.0, -1.0]];
    let error = run(&data, &logprobs, |data, lp| {
        lp[0].dot(lp[0].input(&data[0], "advantages"))
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("`input` at ") && error.ends_with("the datum has no `advantages`"),
        "{error}"
    );

    let own = autodiff::loss(|_, _| Err("no pairs today".into()))(&data, &logprobs);
    assert_eq!(own.unwrap_err().to_string(), "no pairs today");

    let targets = TensorData::with_shape(vec![0_i64; 4], [2, 2]).unwrap();
    let inputs = LossInputs::from([(key::TARGET_TOKENS.to_owned(), targets)]);
    let square = [Datum::new(vec![1, 2], inputs).unwrap()];
    let error = run(&square, &logprobs, |_, lp| lp[0].sum())
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("datum 0: `shape`"), "{error}");
}
