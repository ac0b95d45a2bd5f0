//! Custom losses over a batch, written with variables.

use super::tape::Tape;
use super::tensor::{Shape, Tensor};
use super::var::{Repr, Var};
use crate::BoxError;
use crate::training::CustomLoss;
use tinkrs_types::training::Metrics;
use tinkrs_types::{Datum, InvalidInput};

/// Turns a loss written with variables into one that knows its gradients.
///
/// The function gets the data and, for each datum, the log-probabilities of its target tokens in
/// their shape. It returns the loss of the batch, a scalar, and numbers to report with it. Its
/// result can be given to `forward_backward_custom`.
///
/// ```
/// use tinkrs::autodiff::{self, Var};
/// use tinkrs::training::Metrics;
/// use tinkrs::Datum;
///
/// // Direct preference optimization: data come in pairs of a chosen and a rejected answer.
/// let beta = 0.1;
/// let dpo = autodiff::loss(move |data, logprobs| {
///     let mut loss = Var::from(0.0);
///     for (pair, lp) in data.chunks_exact(2).zip(logprobs.chunks_exact(2)) {
///         let gain = |i: usize| (lp[i] - lp[i].input(&pair[i], "reference")).sum();
///         loss -= (beta * (gain(0) - gain(1))).log_sigmoid();
///     }
///     Ok((loss, Metrics::new()))
/// });
///
/// let answer = || {
///     Datum::supervised(vec![1, 2], [2, 3], [1.0, 1.0])?.with_input("reference", vec![-1.0, -1.0])
/// };
/// let result = dpo(&[answer()?, answer()?], &[&[-0.5, -1.0], &[-1.0, -2.0]])?;
/// assert!((result.loss - (1.0 + (-0.15_f64).exp()).ln()).abs() < 1e-7);
/// assert!(result.gradients[0][0] < 0.0 && result.gradients[1][0] > 0.0);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors
/// The returned function fails if the given one does; if an operation's arguments did not fit,
/// with an [`ExpressionError`](super::ExpressionError); and if the loss is no scalar or does not
/// depend on the log-probabilities of some datum. To leave a datum out on purpose, multiply its
/// share by 0.
pub fn loss<F>(function: F) -> impl FnOnce(&[Datum], &[&[f32]]) -> Result<CustomLoss, BoxError>
where
    F: for<'tape> FnOnce(&[Datum], &[Var<'tape>]) -> Result<(Var<'tape>, Metrics), BoxError>,
{
    move |data, logprobs| {
        let tape = Tape::new();
        let vars = logprobs.iter().zip(data).enumerate();
        let vars = vars.map(|(index, (logprobs, datum))| {
            let tensor = in_target_shape(logprobs, datum).map_err(|error| error.at_datum(index))?;
            Ok(Var::node(&tape, tape.input(tensor)))
        });
        let vars = vars.collect::<Result<Vec<_>, InvalidInput>>()?;
        let (loss, metrics) = function(data, &vars)?;
        let (loss, gradients) = differentiate(&tape, loss, vars.len())?;
        Ok(CustomLoss {
            loss,
            gradients,
            metrics,
        })
    }
}

/// Gives log-probabilities, which come flat, the shape of the tokens that they belong to.
pub(super) fn in_target_shape(logprobs: &[f32], datum: &Datum) -> Result<Tensor, InvalidInput> {
    let tensor = Tensor::from(logprobs);
    match datum.target_tokens().and_then(|targets| targets.shape()) {
        Some(&[rows, columns]) => Tensor::new(Shape::Matrix(rows, columns), tensor.into_values()),
        _ => Ok(tensor),
    }
}

/// Returns the value of `loss` and its derivatives by the first `inputs` nodes of the tape.
///
/// The loss must be of the same tape. Functions that are generic over the lifetime of their tape
/// cannot return a variable of another.
pub(super) fn differentiate(
    tape: &Tape,
    loss: Var<'_>,
    inputs: usize,
) -> Result<(f64, Vec<Vec<f32>>), BoxError> {
    let value = loss.value();
    if let Repr::Failed(fault) = loss.repr {
        tape.fail(fault.error());
    }
    if let Some(error) = tape.error() {
        return Err(error.into());
    }
    let slopes = match loss.repr {
        Repr::Node(_, node) => tape.gradients(node, inputs),
        Repr::Number(_) | Repr::Failed(_) => vec![None; inputs],
    };
    let gradients = slopes.into_iter().enumerate().map(|(index, slope)| {
        let slope = slope.ok_or_else(|| {
            let allowed = "a loss that depends on them, if only times 0";
            InvalidInput::new("logprobs", "no gradient", allowed).at_datum(index)
        })?;
        Ok(slope.into_iter().map(|slope| slope as f32).collect())
    });
    Ok((value, gradients.collect::<Result<_, InvalidInput>>()?))
}
