use super::*;
use std::collections::BTreeMap;
use tinkrs_types::ModelInput;
use tinkrs_types::training::{BatchedTensor, OutputRecord, Provenance, ProvenanceSpan};

/// A server whose model is one vector of logits: every position predicts the same distribution.
/// It computes in doubles, so that what is compared below is the custom loss, not the model.
struct FakeServer {
    logits: Vec<f64>,
}

impl FakeServer {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let logits = (0..VOCABULARY).map(|_| rng.f64() * 2.0 - 1.0).collect();
        Self { logits }
    }

    fn logprob(&self, token: usize) -> f64 {
        let total: f64 = self.logits.iter().map(|logit| logit.exp()).sum();
        self.logits[token] - total.ln()
    }

    /// Runs cross-entropy, `−Σ w·lp`; returns its gradient by the logits too.
    fn cross_entropy(&self, data: &[Datum]) -> (ForwardBackwardOutput, Vec<f64>) {
        let total: f64 = self.logits.iter().map(|logit| logit.exp()).sum();
        let mut gradient = vec![0.0; self.logits.len()];
        let mut loss = 0.0;
        let mut outputs: Vec<Vec<f32>> = Vec::new();
        for datum in data {
            assert_eq!(datum.loss_fn_inputs().len(), 2, "targets and weights only");
            let targets = datum.target_tokens().unwrap().clone().into_dense(0);
            let weights = datum.weights().unwrap().clone().into_dense(0);
            let pairs = targets
                .as_i64()
                .unwrap()
                .iter()
                .zip(weights.as_f32().unwrap());
            let mut output = Vec::new();
            for (token, weight) in pairs {
                let (token, weight) = (*token as usize, f64::from(*weight));
                loss -= weight * self.logprob(token);
                output.push(self.logprob(token) as f32);
                for (other, slot) in gradient.iter_mut().enumerate() {
                    let probability = self.logits[other].exp() / total;
                    *slot -= weight * (f64::from(u8::from(other == token)) - probability);
                }
            }
            outputs.push(output);
        }
        let logprobs = BatchedTensor::from_datums(outputs.iter().map(Vec::as_slice));
        let fields = BTreeMap::from([("logprobs".to_owned(), logprobs)]);
        let output = ForwardBackwardOutput::new(
            "TorchLossReturn".to_owned(),
            vec![OutputRecord::new(data.len(), fields).unwrap()],
            Metrics::from([("loss:sum".to_owned(), loss), ("mfu:mean".to_owned(), 0.5)]),
        );
        (output, gradient)
    }

    /// Does what the client does around a custom loss.
    fn custom(
        &self,
        data: Vec<Datum>,
        loss: impl FnOnce(&[Datum], &[&[f32]]) -> CustomLoss,
    ) -> (ForwardBackwardOutput, Vec<f64>) {
        let (forward, _) = self.cross_entropy(&forward_data(&data).unwrap());
        let logprobs = logprobs(&data, &forward).unwrap();
        let custom = loss(&data, &logprobs);
        let reported = Reported {
            loss: custom.loss,
            metrics: custom.metrics,
            surrogate_loss: surrogate_loss(&custom.gradients, &logprobs),
        };
        let surrogate = surrogate_data(data, custom.gradients).unwrap();
        let (output, gradient) = self.cross_entropy(&surrogate);
        (finish(output, reported), gradient)
    }
}

const VOCABULARY: usize = 7;

fn random_datum(rng: &mut fastrand::Rng) -> Datum {
    let length = rng.usize(1..9);
    let targets: Vec<i64> = (0..length).map(|_| rng.i64(0..VOCABULARY as i64)).collect();
    let weights: Vec<f32> = (0..length).map(|_| rng.f32()).collect();
    Datum::supervised(vec![1_u32; length], targets, weights).unwrap()
}

fn weights_of(datum: &Datum) -> &[f32] {
    datum.weights().unwrap().as_f32().unwrap()
}

#[test]
fn cross_entropy_as_a_custom_loss_equals_the_built_in_one() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let data: Vec<Datum> = (0..4).map(|_| random_datum(&mut rng)).collect();
        let server = FakeServer::new(seed);
        let (built_in, expected) = server.cross_entropy(&data);
        let (custom, gradient) = server.custom(data, |data, logprobs| {
            let terms = data
                .iter()
                .zip(logprobs)
                .flat_map(|(datum, logprobs)| weights_of(datum).iter().zip(*logprobs));
            let loss = terms.map(|(w, lp)| -f64::from(*w) * f64::from(*lp)).sum();
            let gradient = |datum| weights_of(datum).iter().map(|w| -w).collect();
            CustomLoss::new(loss, data.iter().map(gradient).collect())
        });
        assert_eq!(gradient, expected, "seed {seed}");
        assert_eq!(custom.records, built_in.records);
        assert_eq!(
            custom.metrics["surrogate_loss:sum"],
            built_in.metrics["loss:sum"]
        );
        let difference = custom.loss().unwrap() - built_in.loss().unwrap();
        assert!(difference.abs() < 1e-5, "single precision: {difference}");
    }
}

const BETA: f64 = 0.3;

/// The pairwise preference loss `−ln σ(β (Σ chosen − Σ rejected))` over neighbours.
fn preference(sums: &[f64]) -> f64 {
    let pairs = sums.chunks_exact(2);
    pairs
        .map(|pair| (-BETA * (pair[0] - pair[1])).exp().ln_1p())
        .sum()
}

#[test]
fn a_pairwise_preference_loss_moves_the_parameters_along_its_gradient() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(100 + seed);
        let data: Vec<Datum> = (0..6).map(|_| random_datum(&mut rng)).collect();
        let mut server = FakeServer::new(seed);
        let (output, gradient) = server.custom(data.clone(), |_, logprobs| {
            let sum = |logprobs: &&[f32]| logprobs.iter().map(|lp| f64::from(*lp)).sum();
            let sums: Vec<f64> = logprobs.iter().map(sum).collect();
            let gradients = logprobs.iter().enumerate().map(|(index, logprobs)| {
                let pair = &sums[index / 2 * 2..index / 2 * 2 + 2];
                let wrong = 1.0 / (1.0 + (BETA * (pair[0] - pair[1])).exp());
                let sign = if index % 2 == 0 { -1.0 } else { 1.0 };
                vec![(sign * BETA * wrong) as f32; logprobs.len()]
            });
            CustomLoss::new(preference(&sums), gradients.collect()).metric("pairs:sum", 3.0)
        });
        assert_eq!(output.metrics["pairs:sum"], 3.0);

        let loss_at = |server: &FakeServer| {
            let sum = |datum: &Datum| {
                let targets = datum.target_tokens().unwrap().as_i64().unwrap();
                targets
                    .iter()
                    .map(|token| server.logprob(*token as usize))
                    .sum()
            };
            preference(&data.iter().map(sum).collect::<Vec<f64>>())
        };
        let step = 1e-5;
        for (parameter, analytic) in gradient.iter().enumerate() {
            let middle = server.logits[parameter];
            server.logits[parameter] = middle + step;
            let above = loss_at(&server);
            server.logits[parameter] = middle - step;
            let below = loss_at(&server);
            server.logits[parameter] = middle;
            let numeric = (above - below) / (2.0 * step);
            let difference = (numeric - analytic).abs();
            assert!(difference < 1e-6, "seed {seed}: {numeric} for {analytic}");
        }
    }
}

#[test]
fn the_forward_pass_gets_targets_and_weights_or_zeros_and_nothing_else() {
    let span = || vec![ProvenanceSpan::sampled("q".into(), 0, 2).unwrap()];
    let provenance = Provenance {
        model_input: span(),
        loss_fn_inputs: span(),
    };
    let with_weights = Datum::supervised(vec![1_u32, 2], [2, 3], [0.5, 1.0])
        .and_then(|datum| datum.with_input("mine", vec![1.0_f32]))
        .and_then(|datum| datum.with_provenance(provenance.clone()))
        .unwrap();
    let targets = |tensor: TensorData| LossInputs::from([(key::TARGET_TOKENS.to_owned(), tensor)]);
    let bare = Datum::new(vec![1_u32, 2], targets(vec![2, 3].into())).unwrap();
    let rows = TensorData::with_shape(vec![2_i64, 0, 3, 4], [2, 2]).unwrap();
    let two_dimensional = Datum::new(vec![1_u32, 2], targets(rows)).unwrap();
    let sparse = TensorData::compact(vec![0_i64; 40], [2, 20], 0).unwrap();
    let sparse = Datum::new(vec![1_u32, 2], targets(sparse)).unwrap();

    let forward = forward_data(&[with_weights, bare, two_dimensional, sparse]).unwrap();
    assert_eq!(weights_of(&forward[0]), [0.5, 1.0]);
    assert_eq!(forward[0].provenance(), Some(&provenance));
    assert_eq!(weights_of(&forward[1]), [0.0, 0.0]);
    let shapes = forward
        .iter()
        .map(|datum| datum.weights().unwrap().shape().unwrap());
    assert_eq!(
        shapes.collect::<Vec<_>>(),
        [&[2][..], &[2], &[2, 2], &[2, 20]]
    );
    let sparse = forward[3].weights().unwrap();
    assert!(sparse.is_sparse() && sparse.values().is_empty());
    assert!(
        forward
            .iter()
            .all(|datum| datum.loss_fn_inputs().len() == 2)
    );
}

#[test]
fn a_gradient_over_candidates_keeps_their_shape_and_goes_sparse_if_smaller() {
    let rows = TensorData::with_shape(vec![7_i64; 12], [2, 6]).unwrap();
    let inputs = LossInputs::from([(key::TARGET_TOKENS.to_owned(), rows)]);
    let datum = Datum::new(vec![1_u32, 2], inputs).unwrap();
    let mut gradient = vec![0.0; 12];
    gradient[7] = 2.0;
    let surrogate = surrogate_data(
        vec![datum.clone(), datum],
        vec![gradient.clone(), vec![1.0; 12]],
    );
    let surrogate = surrogate.unwrap();
    let weights = surrogate[0].weights().unwrap();
    assert!(weights.is_sparse(), "one of twelve is listed");
    gradient[7] = -2.0;
    assert_eq!(weights.clone().into_dense(0).as_f32(), Some(&gradient[..]));
    assert_eq!(surrogate[1].weights().unwrap().shape(), Some(&[2, 6][..]));
    assert!(!surrogate[1].weights().unwrap().is_sparse());
}

#[test]
fn a_fault_is_named_by_datum_and_field() {
    let datum = || Datum::supervised(vec![1_u32, 2], [2, 3], [1.0, 1.0]).unwrap();
    let targetless = Datum::new(ModelInput::from_tokens([1]), LossInputs::new()).unwrap();
    let gradients =
        |second: Vec<f32>| surrogate_data(vec![datum(), datum()], vec![vec![0.0; 2], second]);
    let answer = |datums: &[&[f32]]| {
        let logprobs = BatchedTensor::from_datums(datums.iter().copied());
        let fields = BTreeMap::from([("logprobs".to_owned(), logprobs)]);
        let records = vec![OutputRecord::new(datums.len(), fields).unwrap()];
        let output = ForwardBackwardOutput::new("", records, Metrics::new());
        logprobs_error(&[datum(), datum()], &output)
    };
    let cases = [
        (
            forward_data(&[datum(), targetless.clone()]).unwrap_err(),
            "datum 1: `target_tokens`: found nothing",
        ),
        (
            surrogate_data(vec![targetless], vec![vec![]]).unwrap_err(),
            "datum 0: `target_tokens`: found nothing",
        ),
        (
            surrogate_data(vec![datum(), datum()], vec![vec![0.0; 2]]).unwrap_err(),
            "`gradients`: found 1 element, expected 2, one for each datum",
        ),
        (
            gradients(vec![1.0]).unwrap_err(),
            "datum 1: `gradient`: found 1 element, expected 2, one for each target token",
        ),
        (
            gradients(vec![0.0, f32::NAN]).unwrap_err(),
            "datum 1: `gradient[1]`: found NaN, expected a finite number",
        ),
        (
            gradients(vec![f32::NEG_INFINITY, 0.0]).unwrap_err(),
            "datum 1: `gradient[0]`: found -inf",
        ),
        (
            answer(&[&[0.0, 0.0]]),
            "`loss_fn_outputs`: found outputs of 1 datums, expected 2",
        ),
        (
            answer(&[&[0.0, 0.0], &[0.0]]),
            "datum 1: `logprobs`: found 1 element, expected 2",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

fn logprobs_error(data: &[Datum], output: &ForwardBackwardOutput) -> InvalidInput {
    logprobs(data, output).unwrap_err()
}

#[test]
fn the_result_reports_the_custom_loss_and_the_callers_metrics() {
    let metrics = |entries: &[(&str, f64)]| -> Metrics {
        entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), *value))
            .collect()
    };
    let finished = |theirs: &[(&str, f64)]| {
        let output = ForwardBackwardOutput::new("", vec![], metrics(theirs));
        let custom = Reported {
            loss: 2.0,
            // A metric of the caller named like the loss does not hide the loss.
            metrics: metrics(&[("mine", 1.0), ("mfu:mean", 0.25), ("loss:sum", 3.0)]),
            surrogate_loss: 8.0,
        };
        finish(output, custom).metrics
    };
    let expected = |surrogate| {
        metrics(&[
            ("loss:sum", 2.0),
            ("mfu:mean", 0.25),
            ("mine", 1.0),
            ("surrogate_loss:sum", surrogate),
        ])
    };
    assert_eq!(
        finished(&[("loss:sum", 9.0), ("mfu:mean", 0.5)]),
        expected(9.0)
    );
    // Not every server reports the loss of a pass.
    assert_eq!(finished(&[]), expected(8.0));
}
