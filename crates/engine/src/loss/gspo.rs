//! Clipped surrogate with one ratio for the whole sequence and gradients for its tokens.
//!
//! ```text
//! M        = { i : sequence_ratio_mask_i ≠ 0 }
//! s        = exp( min( (1/|M|) Σ_{i ∈ M} (lp_i − q_i), 10 ) )
//! s_i      = s · exp(lp_i − lp_i')          with s and lp_i' = lp_i held constant
//! L        = − Σ_i w_i · min(s_i · A_i, clamp(s_i, low, high) · A_i)
//! dL/dlp_i = − w_i · s · A_i   where s · A_i ≤ clamp(s, low, high) · A_i, else 0
//! ```
//!
//! The exponent is capped at 10 so that one absurd sequence cannot overflow the sum. Bounds default to
//! those of [`ppo`](super::ppo()), since none are documented; useful ones are much closer to one. The
//! mask is one number a position, so candidate targets (`[N, K]`) are not supported here: there is no
//! sequence to take the ratio of. Edges are treated as in `ppo`.

use super::inputs::PolicyInputs;
use super::ppo::clipped_term;
use super::{LossInputs, LossOutput, RatioRange};
use crate::Error;

const MAX_LOG_RATIO: f64 = 10.0;

/// Evaluates the sequence-level clipped surrogate of one datum.
///
/// # Errors
///
/// `logprobs`, `advantages` or `sequence_ratio_mask` missing; a wrong length; a non-finite number where
/// it counts; a lower clip bound above the upper one; a mask that selects nothing while advantages do.
pub fn gspo(lp: &[f32], inputs: &LossInputs<'_>, bounds: RatioRange) -> Result<LossOutput, Error> {
    let policy = PolicyInputs::new(lp, inputs)?;
    let mask = inputs.required("sequence_ratio_mask", inputs.sequence_ratio_mask, lp.len())?;
    if !policy.contributes() {
        // Nothing reads the ratio, and its log-probabilities need not be finite.
        return policy.sum(Some(bounds), |token, bounds| {
            clipped_term(1.0, token, bounds)
        });
    }
    let ratio = sequence_ratio(policy.mean_log_ratio(mask)?.ok_or_else(|| Error::Input {
        datum: inputs.datum,
        input: "sequence_ratio_mask".to_owned(),
        reason: "selects no position, but some contribute to the loss".to_owned(),
    })?);
    policy.sum(Some(bounds), |token, bounds| {
        clipped_term(ratio, token, bounds)
    })
}

fn sequence_ratio(mean_log_ratio: f64) -> f64 {
    mean_log_ratio.min(MAX_LOG_RATIO).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs<'a>(q: &'a [f32], advantages: &'a [f32], mask: &'a [f32]) -> LossInputs<'a> {
        LossInputs {
            logprobs: Some(q),
            advantages: Some(advantages),
            sequence_ratio_mask: Some(mask),
            ..LossInputs::default()
        }
    }

    #[test]
    fn the_ratio_is_the_geometric_mean_over_the_mask() {
        let lp = [-1.0, -2.0, -3.0];
        let inputs = inputs(&[-1.1, -2.3, 0.0], &[1.0, 2.0, 3.0], &[1.0, 1.0, 0.0]);
        let output = gspo(
            &lp,
            &inputs,
            RatioRange {
                low: 0.0,
                high: 9.0,
            },
        )
        .unwrap();
        let s = (0.2_f64).exp();
        assert!((output.loss + 6.0 * s).abs() < 1e-6, "{}", output.loss);
        for (gradient, advantage) in output.gradient.iter().zip([1.0, 2.0, 3.0]) {
            assert!((f64::from(*gradient) + s * advantage).abs() < 1e-6);
        }
    }

    #[test]
    fn the_exponent_is_capped() {
        let inputs = inputs(&[-500.0], &[-1.0], &[1.0]);
        let output = gspo(&[0.0], &inputs, RatioRange::PPO).unwrap();
        assert_eq!(output.loss, MAX_LOG_RATIO.exp());
    }

    #[test]
    fn a_mask_that_selects_nothing_is_refused_unless_nothing_contributes() {
        let error = gspo(&[0.0], &inputs(&[0.0], &[1.0], &[0.0]), RatioRange::PPO).unwrap_err();
        assert!(error.to_string().contains("sequence_ratio_mask"), "{error}");
        let unused = inputs(&[f32::NAN], &[0.0], &[0.0]);
        assert_eq!(
            gspo(&[f32::NAN], &unused, RatioRange::PPO).unwrap().loss,
            0.0
        );
    }
}
