//! Traced losses: what is uploaded, against the official SDK, and what they give, against PyTorch.

use crate::autodiff::{TracedLoss, Var};
use serde_json::{Value, json};
use tinkrs_types::protocol::key;
use tinkrs_types::training::LossInputs;
use tinkrs_types::{Datum, TensorData};

type Metrics<'tape> = Vec<(&'static str, Var<'tape>)>;

/// The losses of `tests/reference/custom_loss.py`.
fn reference_losses() -> [TracedLoss; 4] {
    let negative_sum = TracedLoss::trace("negative_sum", [("logprobs", 1)], |[logprobs]| {
        (-logprobs.sum(), vec![])
    });
    let clipped = TracedLoss::trace(
        "clipped",
        [("logprobs", 1), ("old", 1), ("advantages", 1), ("scale", 0)],
        |[logprobs, old, advantages, scale]| {
            let ratio = (logprobs - old).exp();
            let surrogate = (ratio * advantages).minimum(ratio.clamp(0.8, 1.2) * advantages);
            let drift = (old - logprobs).mean();
            let loss = -surrogate.sum() * scale;
            (
                loss,
                vec![
                    ("custom/drift:mean", drift),
                    ("custom/ratio/sum_1:sum", ratio.sum()),
                ],
            )
        },
    );
    let functions = TracedLoss::trace(
        "functions",
        [("logprobs", 1), ("mask", 1), ("add_1", 1)],
        |[logprobs, mask, add_1]| {
            let x = logprobs.exp() + 0.5;
            let x = x - 1.0 / x;
            let x = (x.powi(2) + 1.5).sqrt().log() + x.powf(0.0) + x.abs();
            let x = x.sigmoid() * x.tanh() - x.softplus() + (-x).log_sigmoid();
            let x = (x + 3.0).relu() / 2.0;
            let x = x.maximum(logprobs) + x.maximum(0.25) + x.clamp_max(f64::INFINITY);
            let x = mask.select(x, -1.0);
            let y = Var::concat(&[x.slice(1..), x.slice(..-1)]);
            let z = Var::stack(&[y.index(0), x.dot(add_1), y.index(-1), x.detach().sum_last()]);
            let loss = z.logsumexp() + y.mean() + x.sum_last();
            (loss, vec![("custom/z-0.5:sum", z.sum())])
        },
    );
    let candidates = TracedLoss::trace(
        "candidates",
        [("logprobs", 2), ("weights", 1)],
        |[logprobs, weights]| {
            let normalised = logprobs - logprobs.logsumexp();
            let weighted = weights * normalised.exp();
            let loss = (weighted * logprobs).sum_last().sum();
            (loss, vec![("custom/first:mean", weighted.index(0).sum())])
        },
    );
    [negative_sum, clipped, functions, candidates].map(Result::unwrap)
}

fn references() -> Vec<Value> {
    serde_json::from_str(include_str!("../../../tests/reference/custom_loss.json")).unwrap()
}

#[test]
fn the_upload_is_what_the_official_client_would_send() {
    for (loss, expected) in reference_losses().iter().zip(references()) {
        assert_eq!(expected["name"], loss.name());
        assert_eq!(expected["inputs"], json!(loss.inputs()), "{}", loss.name());
        let ours = json!(loss.graph());
        let nodes = ours["nodes"].as_array().unwrap().iter();
        for (node, expected) in nodes.zip(expected["graph"]["nodes"].as_array().unwrap()) {
            assert_eq!(node, expected, "{}", loss.name());
        }
        assert_eq!(ours, expected["graph"], "{}", loss.name());
    }
}

#[test]
fn the_simplest_upload_is_the_golden_one() {
    let golden = include_str!(
        "../../../../../conformance/golden/vectors/requests/create_custom_loss.minimal.json"
    );
    let golden: Value = serde_json::from_str(golden).unwrap();
    let [loss, ..] = reference_losses();
    assert_eq!(golden["body"]["graph"], json!(loss.graph()));
    assert_eq!(golden["body"]["inputs"], json!(loss.inputs()));
}

fn tensor(value: &Value) -> TensorData {
    fn flat(value: &Value) -> Vec<f32> {
        match value.as_array() {
            Some(items) => items.iter().flat_map(flat).collect(),
            None => vec![value.as_f64().unwrap() as f32],
        }
    }
    let shape = match value.as_array() {
        None => vec![],
        Some(rows) => match rows[0].as_array() {
            None => vec![rows.len()],
            Some(columns) => vec![rows.len(), columns.len()],
        },
    };
    TensorData::with_shape(flat(value), shape).unwrap()
}

/// Makes a datum with the inputs of a reference, and its log-probabilities.
fn datum(values: &Value) -> (Datum, Vec<f32>) {
    let logprobs = tensor(&values["logprobs"]);
    let targets = vec![0_i64; logprobs.values().len()];
    let targets = TensorData::with_shape(targets, logprobs.shape().unwrap()).unwrap();
    let tokens = vec![1_u32; logprobs.rows()];
    let mut inputs = LossInputs::from([(key::TARGET_TOKENS.to_owned(), targets)]);
    for (name, value) in values.as_object().unwrap() {
        if name != "logprobs" {
            inputs.insert(name.clone(), tensor(value));
        }
    }
    let datum = Datum::new(tokens, inputs).unwrap();
    (datum, logprobs.as_f32().unwrap().to_vec())
}

#[test]
fn a_traced_loss_gives_what_pytorch_gives() {
    for (loss, expected) in reference_losses().iter().zip(references()) {
        let (datum, logprobs) = datum(&expected["values"]);
        let result = loss.evaluate(&datum, &logprobs).unwrap();
        let close = |ours: f64, theirs: &Value, tolerance: f64| {
            let theirs = theirs.as_f64().unwrap();
            assert!(
                (ours - theirs).abs() < tolerance,
                "{}: {ours}, {theirs}",
                loss.name()
            );
        };
        close(result.loss, &expected["loss"], 1e-12);
        let gradient = expected["gradient"].as_array().unwrap();
        assert_eq!(result.gradients[0].len(), gradient.len());
        for (ours, theirs) in result.gradients[0].iter().zip(gradient) {
            close(f64::from(*ours), theirs, 1e-6);
        }
        assert_eq!(
            result.metrics.len(),
            expected["metrics"].as_object().unwrap().len()
        );
        for (name, value) in &result.metrics {
            close(*value, &expected["metrics"][name], 1e-12);
        }
    }
}

#[test]
fn a_batch_adds_losses_and_combines_metrics_by_their_suffix() {
    let loss = TracedLoss::trace(
        "sums",
        [("logprobs", 1), ("bonus", 0)],
        |[logprobs, bonus]| {
            let metrics = vec![
                ("custom/tokens:sum", bonus * 1.0),
                ("custom/tokens:mean", bonus * 1.0),
            ];
            ((logprobs * bonus).sum(), metrics)
        },
    );
    let loss = loss.unwrap();
    let datum = |bonus: f32, length: usize| {
        let bonus = TensorData::with_shape(vec![bonus], []).unwrap();
        Datum::supervised(vec![1_u32; length], vec![0_i64; length], vec![0.0; length])
            .and_then(|datum| datum.with_input("bonus", bonus))
            .unwrap()
    };
    let data = [datum(1.0, 2), datum(4.0, 1)];
    let result = loss
        .evaluate_batch(&data, &[&[-1.0, -2.0], &[-0.5]])
        .unwrap();
    assert_eq!(result.loss, -3.0 - 2.0);
    assert_eq!(result.gradients, [vec![1.0, 1.0], vec![4.0]]);
    assert_eq!(result.metrics["custom/tokens:sum"], 5.0);
    assert_eq!(result.metrics["custom/tokens:mean"], 2.5);
}

#[test]
fn losses_that_do_the_same_have_the_same_key_whatever_their_name() {
    let trace = |name: &str, factor: f64, rank: u8| {
        let traced = TracedLoss::trace(name, [("logprobs", rank)], |[logprobs]| {
            ((logprobs * factor).sum(), vec![])
        });
        traced.unwrap().key()
    };
    let key = trace("one", 2.0, 1);
    assert_eq!(key, trace("other", 2.0, 1));
    assert_ne!(key, trace("one", 3.0, 1));
    assert_ne!(key, trace("one", 2.0, 2));
    assert_eq!(key.len(), 64);
}

#[test]
fn names_and_dimensions_are_checked() {
    fn sum<const N: usize>(vars: [Var<'_>; N]) -> (Var<'_>, Metrics<'_>) {
        (vars[0].sum(), vec![])
    }
    let long = "a".repeat(65);
    let many: [(&str, u8); 17] =
        std::array::from_fn(|n| if n == 0 { ("logprobs", 1) } else { ("x", 1) });
    let two = |name, rank| TracedLoss::trace("x", [("logprobs", 1), (name, rank)], sum);
    let cases = [
        (
            TracedLoss::trace("x", [], |[]| (1.0.into(), vec![])),
            "`logprobs` as the first",
        ),
        (
            TracedLoss::trace("x", [("weights", 1)], sum),
            "`logprobs` as the first",
        ),
        (
            TracedLoss::trace("x", [("logprobs", 0)], sum),
            "1, or 2 with candidates",
        ),
        (
            TracedLoss::trace("x", [("logprobs", 3)], sum),
            "1, or 2 with candidates",
        ),
        (TracedLoss::trace("x", many, sum), "found 17"),
        (two("Weights", 1), "`Weights`"),
        (two("1st", 1), "`1st`"),
        (two("", 1), "``"),
        (two("lambda", 1), "`lambda`"),
        (two(&long, 1), "up to 64"),
        (two("logprobs", 1), "`logprobs` again"),
        (two("cube", 3), "`cube` with 3 dimensions"),
    ];
    for (result, expected) in cases {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, not {expected}");
    }
    two("_weights_2", 2).unwrap();
}

#[test]
fn metrics_are_checked() {
    let long: &'static str = concat!(
        "custom/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ":sum"
    );
    let trace = |names: &[&'static str]| {
        TracedLoss::trace("x", [("logprobs", 1)], |[logprobs]| {
            let metric = |name: &&'static str| (*name, logprobs.mean());
            (logprobs.sum(), names.iter().map(metric).collect())
        })
    };
    for name in [
        "kl:sum",
        "custom/:sum",
        "custom/Kl:sum",
        "custom/kl:max",
        "custom/a:b:sum",
        long,
    ] {
        let error = trace(&[name]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`metrics`: found `{name}`")),
            "{error}"
        );
    }
    let error = trace(&["custom/kl:sum", "custom/kl:sum"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("again"), "{error}");
    trace(&["custom/kl:sum", "custom/kl:mean", "custom/a.b/c-d_0:mean"]).unwrap();
}

#[test]
fn what_cannot_be_traced_is_named() {
    type Function = for<'tape> fn([Var<'tape>; 2]) -> (Var<'tape>, Metrics<'tape>);
    let cases: &[(Function, &str)] = &[
        (|[lp, _]| (lp * lp.sum().value(), vec![]), "`value` at"),
        (
            |[lp, _]| (lp.constant(vec![1.0]).dot(lp), vec![]),
            "`constant` at",
        ),
        (|[lp, _]| (lp.dot(1.0), vec![]), "not numbers from outside"),
        (|[lp, w]| (lp.dot(w.sum()), vec![]), "takes two vectors"),
        (|[lp, _]| (lp, vec![]), "`loss`: found 1 dimension"),
        (
            |[_, _]| (1.0.into(), vec![]),
            "`loss`: found the plain number 1",
        ),
        (|[_, w]| (w.sum(), vec![]), "one that depends on `logprobs`"),
        (
            |[lp, _]| (lp.detach().sum(), vec![]),
            "one that depends on `logprobs`",
        ),
        (
            |[lp, _]| (lp.sum(), vec![("custom/x:sum", lp)]),
            "`custom/x:sum`: found 1 dimension",
        ),
        (
            |[lp, _]| (lp.sum(), vec![("custom/x:sum", 1.0.into())]),
            "found the plain number",
        ),
    ];
    for (function, expected) in cases {
        let result = TracedLoss::trace("x", [("logprobs", 1), ("weights", 1)], *function);
        let error = result.unwrap_err();
        let cause = std::error::Error::source(&error).map_or(String::new(), ToString::to_string);
        let text = format!("{error}: {cause}");
        assert!(text.contains(expected), "{text}, not {expected}");
    }
}

#[test]
fn data_that_the_loss_cannot_take_is_named_by_datum() {
    let inputs = [("logprobs", 1), ("advantages", 1)];
    let loss = TracedLoss::trace("mine", inputs, |[lp, advantages]| {
        (lp.dot(advantages), vec![])
    });
    let loss = loss.unwrap();
    let targets = || vec![0_i64; 2];
    let good = Datum::reinforcement(vec![1, 2], targets(), [0.0; 2], [1.0; 2]).unwrap();
    let missing = Datum::supervised(vec![1, 2], targets(), [0.0; 2]).unwrap();
    let matrix = TensorData::with_shape(vec![0.0_f32; 4], [2, 2]).unwrap();
    let matrix = missing.clone().with_input("advantages", matrix).unwrap();
    let logprobs: [&[f32]; 2] = [&[-1.0, -1.0], &[-1.0, -1.0]];
    for (bad, found) in [(missing, "nothing"), (matrix, "2 dimensions")] {
        let data = [good.clone(), bad];
        let expected = format!(
            "datum 1: `advantages`: found {found}, expected 1 dimension, as loss `mine` takes"
        );
        assert_eq!(loss.check(&data).unwrap_err().to_string(), expected);
        assert_eq!(
            loss.evaluate_batch(&data, &logprobs)
                .unwrap_err()
                .to_string(),
            expected
        );
    }
    let short: [&[f32]; 2] = [&[-1.0, -1.0], &[-1.0]];
    let error = loss
        .evaluate_batch(&[good.clone(), good], &short)
        .unwrap_err()
        .to_string();
    let expected = "datum 1: loss `mine`: `dot`: the shapes [1] and [2] do not fit together";
    assert_eq!(error, expected);
}
