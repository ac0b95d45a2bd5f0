//! Training with a loss of the caller's own.
//!
//! The server knows only its built-in losses, but any loss that depends on the model through the
//! log-probabilities of the targets can be trained with two passes. Let `C(lp)` be the loss and
//! `g = dC/dlp` its gradient. The built-in cross-entropy is `L = −Σ w·lp`, whose gradient with
//! respect to `lp` is `−w`; so a forward-backward pass with the constant weights `w = −g` gives
//! every parameter of the model exactly the gradient that `C` would.
//!
//! 1. [`forward_data`]: what to send for the log-probabilities.
//! 2. [`logprobs`]: reading them from the answer. The caller's loss then makes a [`CustomLoss`].
//! 3. [`surrogate_data`]: what to send for the gradients.
//! 4. [`finish`]: putting the loss and its metrics into the answer.
//!
//! All four are pure; the passes between them are the client's.

use tinkrs_types::protocol::key;
use tinkrs_types::tensor::CsrIndices;
use tinkrs_types::training::{LossInputs, Metrics};
use tinkrs_types::{Datum, ForwardBackwardOutput, InvalidInput, TensorData};

/// The value of a custom loss on a batch, with its gradient.
///
/// ```
/// use tinkrs::training::CustomLoss;
///
/// // Negative log-likelihood of one datum: each log-probability has the gradient −1.
/// let logprobs = [-0.5_f32, -1.5];
/// let loss = logprobs.iter().map(|lp| f64::from(-lp)).sum();
/// let custom = CustomLoss::new(loss, vec![vec![-1.0, -1.0]]).metric("tokens:sum", 2.0);
/// assert_eq!(custom.loss, 2.0);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomLoss {
    /// The loss of the whole batch.
    pub loss: f64,
    /// For each datum, the derivative of the loss by each of its log-probabilities, in the same
    /// order.
    pub gradients: Vec<Vec<f32>>,
    /// Numbers to report with the result.
    pub metrics: Metrics,
}

impl CustomLoss {
    /// Makes a loss without metrics.
    pub fn new(loss: f64, gradients: Vec<Vec<f32>>) -> Self {
        Self {
            loss,
            gradients,
            metrics: Metrics::new(),
        }
    }

    /// Adds a number to report with the result.
    #[must_use]
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.insert(name.into(), value);
        self
    }
}

/// Makes the data of the forward pass: the targets, and their weights or zeros.
///
/// The result of the pass depends on the targets alone. Weights are sent because cross-entropy
/// wants some; other tensors are the custom loss's and stay here.
///
/// # Errors
/// If a datum has no target tokens.
pub(crate) fn forward_data(data: &[Datum]) -> Result<Vec<Datum>, InvalidInput> {
    let forward = |(index, datum): (usize, &Datum)| {
        let targets = target_tokens(datum, index)?.clone();
        let weights = match datum.weights() {
            Some(weights) => weights.clone(),
            None => zeros_like(&targets)?,
        };
        let model_input = datum.model_input().clone();
        let provenance = datum.provenance().cloned();
        cross_entropy_datum(model_input, targets, weights, provenance)
            .map_err(|error| error.at_datum(index))
    };
    data.iter().enumerate().map(forward).collect()
}

/// Reads the log-probabilities of each datum's targets from the answer to [`forward_data`].
///
/// They are row-major in the shape of the target tokens.
///
/// # Errors
/// If the answer does not have one log-probability for each target of each datum: a fault of the
/// server, not of the caller.
pub(crate) fn logprobs<'output>(
    data: &[Datum],
    output: &'output ForwardBackwardOutput,
) -> Result<Vec<&'output [f32]>, InvalidInput> {
    if output.datums() != data.len() {
        return Err(InvalidInput::new(
            "loss_fn_outputs",
            format_args!("outputs of {} datums", output.datums()),
            format!("{}, as many as were sent", data.len()),
        ));
    }
    let read = |(index, datum): (usize, &Datum)| {
        let expected = cells(target_tokens(datum, index)?);
        let found = output.logprobs(index);
        found
            .filter(|logprobs| logprobs.len() == expected)
            .ok_or_else(|| {
                let found = found.map_or("nothing".to_owned(), |found| count(found.len()));
                wrong_length("logprobs", found, expected).at_datum(index)
            })
    };
    data.iter().enumerate().map(read).collect()
}

/// Makes the data of the backward pass: the targets, weighted with the negated gradients.
///
/// # Errors
/// If there is not one gradient for each datum, with one finite number for each target.
pub(crate) fn surrogate_data(
    data: Vec<Datum>,
    gradients: Vec<Vec<f32>>,
) -> Result<Vec<Datum>, InvalidInput> {
    if gradients.len() != data.len() {
        return Err(InvalidInput::new(
            "gradients",
            count(gradients.len()),
            format!("{}, one for each datum", data.len()),
        ));
    }
    let surrogate = |(index, (datum, gradient)): (usize, (Datum, Vec<f32>))| {
        let (model_input, mut inputs, provenance) = datum.into_parts();
        let targets = inputs
            .remove(key::TARGET_TOKENS)
            .ok_or_else(|| no_targets(index))?;
        let weights = negated(gradient, &targets).map_err(|error| error.at_datum(index))?;
        cross_entropy_datum(model_input, targets, weights, provenance)
            .map_err(|error| error.at_datum(index))
    };
    data.into_iter()
        .zip(gradients)
        .enumerate()
        .map(surrogate)
        .collect()
}

/// Returns the loss of the pass over [`surrogate_data`]: `−Σ w · lp` with `w = −g`.
pub(crate) fn surrogate_loss(gradients: &[Vec<f32>], logprobs: &[&[f32]]) -> f64 {
    let both = gradients
        .iter()
        .flatten()
        .zip(logprobs.iter().copied().flatten());
    both.map(|(gradient, logprob)| f64::from(*gradient) * f64::from(*logprob))
        .sum()
}

/// What is reported of a custom loss.
#[derive(Debug)]
pub(crate) struct Reported {
    pub(crate) loss: f64,
    pub(crate) metrics: Metrics,
    /// The surrogate's loss, for servers that do not report the loss of a pass.
    pub(crate) surrogate_loss: f64,
}

/// Replaces the surrogate's loss in the answer to [`surrogate_data`] by the custom loss, and adds
/// the caller's metrics.
pub(crate) fn finish(mut output: ForwardBackwardOutput, custom: Reported) -> ForwardBackwardOutput {
    let surrogate = output.metrics.remove(LOSS);
    output.metrics.extend(custom.metrics);
    output.metrics.insert(LOSS.to_owned(), custom.loss);
    let surrogate = surrogate.unwrap_or(custom.surrogate_loss);
    output.metrics.insert(SURROGATE_LOSS.to_owned(), surrogate);
    output
}

const LOSS: &str = "loss:sum";
const SURROGATE_LOSS: &str = "surrogate_loss:sum";

fn cross_entropy_datum(
    model_input: tinkrs_types::ModelInput,
    targets: TensorData,
    weights: TensorData,
    provenance: Option<tinkrs_types::training::Provenance>,
) -> Result<Datum, InvalidInput> {
    let inputs = LossInputs::from([
        (key::TARGET_TOKENS.to_owned(), targets),
        (key::WEIGHTS.to_owned(), weights),
    ]);
    let datum = Datum::new(model_input, inputs)?;
    match provenance {
        Some(provenance) => datum.with_provenance(provenance),
        None => Ok(datum),
    }
}

fn target_tokens(datum: &Datum, index: usize) -> Result<&TensorData, InvalidInput> {
    datum.target_tokens().ok_or_else(|| no_targets(index))
}

fn no_targets(index: usize) -> InvalidInput {
    InvalidInput::new(
        key::TARGET_TOKENS,
        "nothing",
        "the tokens whose log-probabilities the custom loss reads",
    )
    .at_datum(index)
}

/// Returns the number of cells, listed or not.
fn cells(tensor: &TensorData) -> usize {
    match tensor.shape() {
        Some(shape) => shape.iter().product(),
        None => tensor.values().len(),
    }
}

/// Makes zeros in the shape of `targets`; for sparse targets, none is listed.
fn zeros_like(targets: &TensorData) -> Result<TensorData, InvalidInput> {
    match (targets.shape(), targets.is_sparse()) {
        (Some(&[rows, columns]), true) => {
            let indices = CsrIndices {
                crow: vec![0; rows + 1],
                col: Vec::new(),
            };
            TensorData::sparse(Vec::<f32>::new(), indices, [rows, columns])
        }
        (Some(shape), _) => TensorData::with_shape(vec![0.0_f32; cells(targets)], shape),
        (None, _) => Ok(TensorData::without_shape(vec![0.0_f32; cells(targets)])),
    }
}

fn negated(mut gradient: Vec<f32>, targets: &TensorData) -> Result<TensorData, InvalidInput> {
    if gradient.len() != cells(targets) {
        let found = count(gradient.len());
        return Err(wrong_length("gradient", found, cells(targets)));
    }
    for (position, value) in gradient.iter_mut().enumerate() {
        if !value.is_finite() {
            let field = format!("gradient[{position}]");
            return Err(InvalidInput::new(field, *value, "a finite number"));
        }
        *value = -*value;
    }
    match targets.shape() {
        // A gradient over candidates is mostly zeros where candidates are padding.
        Some(&[rows, columns]) => TensorData::compact(gradient, [rows, columns], 0),
        Some(shape) => TensorData::with_shape(gradient, shape),
        None => Ok(gradient.into()),
    }
}

fn wrong_length(field: &'static str, found: String, expected: usize) -> InvalidInput {
    InvalidInput::new(
        field,
        found,
        format!("{expected}, one for each target token"),
    )
}

fn count(elements: usize) -> String {
    match elements {
        1 => "1 element".to_owned(),
        _ => format!("{elements} elements"),
    }
}

#[cfg(test)]
mod tests;
