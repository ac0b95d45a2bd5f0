//! Weighted negative log-likelihood.
//!
//! ```text
//! L        = − Σ_i w_i · lp_i
//! dL/dlp_i = − w_i
//! ```
//!
//! Weights may be any finite numbers, negative ones included: clients compute custom losses by sending
//! the gradient they want as weights. For the same reason `loss:sum` is the only metric: it is the one
//! those clients know how to remove.

use super::inputs::finite_at;
use super::{LossInputs, LossOutput, Metrics};
use crate::Error;

/// Evaluates the weighted negative log-likelihood of one datum.
///
/// # Errors
///
/// `weights` of the wrong length or not finite, or a non-finite log-probability with a non-zero weight.
pub fn cross_entropy(lp: &[f32], inputs: &LossInputs<'_>) -> Result<LossOutput, Error> {
    let weights = inputs.finite("weights", inputs.weights, lp.len())?;
    let mut loss = 0.0;
    for i in 0..lp.len() {
        let weight = weights.map_or(1.0, |weights| weights[i]);
        if weight == 0.0 {
            continue;
        }
        loss -= f64::from(weight) * finite_at(inputs.datum, "model log-probability", lp, i)?;
    }
    let mut metrics = Metrics::default();
    metrics.push("loss:sum", loss);
    Ok(LossOutput {
        loss,
        gradient: slopes(weights, lp.len()),
        metrics,
    })
}

/// Returns `−w_i`, without log-probabilities; a weight of zero gives exactly 0, not −0.
pub(super) fn slopes(weights: Option<&[f32]>, targets: usize) -> Vec<f32> {
    match weights {
        Some(weights) => weights
            .iter()
            .map(|&w| if w == 0.0 { 0.0 } else { -w })
            .collect(),
        None => vec![-1.0; targets],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_weights_count_as_ones() {
        let output = cross_entropy(&[-1.0, -2.5], &LossInputs::default()).unwrap();
        assert_eq!(output.loss, 3.5);
        assert_eq!(output.gradient, [-1.0, -1.0]);
        assert_eq!(output.metrics.get("loss:sum"), Some(3.5));
    }

    #[test]
    fn negative_weights_are_allowed() {
        let inputs = LossInputs {
            weights: Some(&[2.0, -3.0]),
            ..LossInputs::default()
        };
        let output = cross_entropy(&[-1.0, -2.0], &inputs).unwrap();
        assert_eq!(output.loss, 2.0 - 6.0);
        assert_eq!(output.gradient, [-2.0, 3.0]);
    }

    #[test]
    fn only_the_loss_is_reported() {
        let output = cross_entropy(&[-1.0], &LossInputs::default()).unwrap();
        assert_eq!(output.metrics.iter().count(), 1);
    }
}
