//! How surprised a model is by text.

use crate::Error;
use crate::renderer::Example;
use tinkrs::{Datum, TrainingClient};

/// Returns the mean negative log-likelihood of the tokens that count, under the model's present
/// weights. Gradients are not touched.
///
/// # Errors
/// If nothing counts, or the server fails.
pub async fn mean_nll(training: &TrainingClient, examples: &[Example]) -> Result<f64, Error> {
    let datums = examples
        .iter()
        .map(Example::to_datum)
        .collect::<Result<Vec<Datum>, _>>()?;
    let weights = examples
        .iter()
        .flat_map(|example| example.weights.iter().skip(1));
    let weight: f64 = weights.map(|weight| f64::from(*weight)).sum();
    if weight <= 0.0 {
        return Err(Error::setting("eval data", "no token in it counts"));
    }
    let output = training.forward(datums).await?;
    Ok(output.loss().ok_or(Error::Missing { what: "loss" })? / weight)
}
