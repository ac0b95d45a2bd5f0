//! The numbers of the scripted server's model, simple enough to be computed by a test.
//!
//! The model is the same whatever it is trained on: token `t` has log-probability
//! `-(t mod 7) / 10` at every position, and sampling counts up from the last prompt token.

use tinkrs_types::protocol::key;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::training::{BatchedTensor, Metrics, OutputRecord};
use tinkrs_types::{Datum, ForwardBackwardOutput, InvalidInput, LossFn, TensorData};

/// How many tokens the model knows.
pub const VOCABULARY: u32 = 1_000;

/// Returns the log-probability of a token, wherever it stands.
pub fn logprob(token: i64) -> f32 {
    -(token.rem_euclid(7) as f32) / 10.0
}

/// Returns the tokens that the model samples after a prompt.
///
/// They count up from the prompt's last token; the sequence with the next index starts one
/// later, so that the sequences of a request differ.
pub fn sampled_tokens(prompt: &[u32], index: u32, length: u32) -> Vec<u32> {
    let last = prompt.last().copied().unwrap_or(0);
    (1..=length)
        .map(|step| (last + index + step) % VOCABULARY)
        .collect()
}

/// Computes a pass: the log-probability of each target, and the loss as the metric `loss:sum`.
///
/// # Errors
/// If a datum lacks a tensor that the loss reads, or the loss has no formula here.
pub fn pass(data: &[Datum], loss_fn: &LossFn) -> Result<ForwardBackwardOutput, InvalidInput> {
    let mut loss = 0.0;
    let mut values = Vec::new();
    let mut offsets = vec![0];
    let mut trailing = vec![];
    for (index, datum) in data.iter().enumerate() {
        let targets = datum.target_tokens().cloned().ok_or_else(|| {
            InvalidInput::new(key::TARGET_TOKENS, "nothing", "a tensor").at_datum(index)
        })?;
        let targets = targets.into_dense(0);
        trailing = targets.shape().map_or(vec![], |shape| shape[1..].to_vec());
        let logprobs: Vec<f32> = match targets.values() {
            TensorValues::I64(tokens) => tokens.iter().map(|token| logprob(*token)).collect(),
            TensorValues::F32(_) => vec![],
        };
        loss += datum_loss(datum, &logprobs, loss_fn).map_err(|e| e.at_datum(index))?;
        values.extend(logprobs);
        offsets.push(values.len());
    }
    let field = BatchedTensor::new(values, offsets, trailing)?;
    let fields = [(key::LOGPROBS.to_owned(), field)].into();
    Ok(ForwardBackwardOutput::new(
        "TorchLossReturn".to_owned(),
        vec![OutputRecord::new(data.len(), fields)?],
        Metrics::from([("loss:sum".to_owned(), loss)]),
    ))
}

/// Computes the loss of one datum, by the formulas of the API's documentation.
fn datum_loss(datum: &Datum, logprobs: &[f32], loss_fn: &LossFn) -> Result<f64, InvalidInput> {
    let inputs = |name: &'static str| match datum.loss_fn_inputs().get(name).cloned() {
        Some(tensor) => floats(name, tensor.into_dense(0)),
        None => Err(InvalidInput::new(name, "nothing", "a tensor")),
    };
    let sum = |term: &dyn Fn(usize, f64) -> f64| -> f64 {
        let terms = logprobs.iter().enumerate();
        terms.map(|(i, lp)| term(i, f64::from(*lp))).sum()
    };
    if *loss_fn == LossFn::CrossEntropy {
        let w = inputs(key::WEIGHTS)?;
        return Ok(-sum(&|i, lp| w[i] * lp));
    }
    if let LossFn::Custom { .. } = loss_fn {
        return Ok(-sum(&|_, lp| lp));
    }
    let (q, a) = (inputs(key::LOGPROBS)?, inputs(key::ADVANTAGES)?);
    let ratio = |i: usize, lp: f64| (lp - q[i]).exp();
    match loss_fn {
        LossFn::ImportanceSampling => Ok(-sum(&|i, lp| ratio(i, lp) * a[i])),
        LossFn::Ppo(clip) => {
            let (low, high) = (clip.low.unwrap_or(0.8), clip.high.unwrap_or(1.2));
            Ok(-sum(&|i, lp| {
                let r = ratio(i, lp);
                (r * a[i]).min(r.clamp(low, high) * a[i])
            }))
        }
        LossFn::Cispo(clip) => {
            let (low, high) = (clip.low.unwrap_or(0.0), clip.high.unwrap_or(4.0));
            Ok(-sum(&|i, lp| ratio(i, lp).clamp(low, high) * lp * a[i]))
        }
        LossFn::Dro { beta } => {
            let beta = beta.unwrap_or(0.05);
            Ok(-sum(&|i, lp| lp * a[i] - beta / 2.0 * (lp - q[i]).powi(2)))
        }
        other => Err(InvalidInput::new(
            "loss_fn",
            other.name(),
            "one that the scripted server can compute",
        )),
    }
}

fn floats(name: &'static str, tensor: TensorData) -> Result<Vec<f64>, InvalidInput> {
    match tensor.into_values() {
        TensorValues::F32(values) => Ok(values.into_iter().map(f64::from).collect()),
        TensorValues::I64(_) => Err(InvalidInput::new(name, "int64", "float32")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_entropy_is_minus_the_weighted_sum_of_logprobs() {
        let datum = Datum::supervised(vec![1, 2, 3], [2, 3, 11], [0.0, 2.0, -1.0]).unwrap();
        let output = pass(&[datum], &LossFn::CrossEntropy).unwrap();
        assert_eq!(output.logprobs(0), Some(&[-0.2, -0.3, -0.4][..]));
        let loss = output.loss().unwrap();
        assert!((loss - (2.0 * 0.3 - 0.4)).abs() < 1e-6, "{loss}");
    }

    #[test]
    fn a_policy_that_has_not_moved_has_the_plain_policy_gradient_loss() {
        let datum = Datum::reinforcement(vec![1, 2], [2, 3], [-0.2, -0.3], [1.0, -2.0]).unwrap();
        for loss_fn in [LossFn::ImportanceSampling, LossFn::Ppo(Default::default())] {
            let output = pass(std::slice::from_ref(&datum), &loss_fn).unwrap();
            let loss = output.loss().unwrap();
            assert!((loss - 1.0).abs() < 1e-6, "{}: {loss}", loss_fn.name());
        }
    }
}
