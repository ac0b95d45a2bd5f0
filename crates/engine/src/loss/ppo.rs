//! Clipped surrogate of proximal policy optimisation.
//!
//! ```text
//! r_i      = exp(lp_i − q_i)
//! c_i      = clamp(r_i, low, high)
//! L        = − Σ_i w_i · min(r_i · A_i, c_i · A_i)
//! dL/dlp_i = − w_i · r_i · A_i   where r_i · A_i ≤ c_i · A_i, else 0
//! ```
//!
//! Inside the bounds, the bounds themselves included, both branches are equal and the gradient is that
//! of the unclipped one. Outside, the gradient vanishes only where moving on would improve the
//! objective: above `high` for a positive advantage, below `low` for a negative one.

use super::inputs::{PolicyInputs, Token};
use super::{LossInputs, LossOutput, RatioRange, Term};
use crate::Error;

/// Evaluates the clipped surrogate of one datum.
///
/// # Errors
///
/// `logprobs` or `advantages` missing; a wrong length; a non-finite number where it counts; a lower
/// clip bound above the upper one.
pub fn ppo(lp: &[f32], inputs: &LossInputs<'_>, bounds: RatioRange) -> Result<LossOutput, Error> {
    PolicyInputs::new(lp, inputs)?.sum(Some(bounds), |token, bounds| {
        clipped_term(token.ratio(), token, bounds)
    })
}

/// The term of a clipped surrogate whose ratio is `ratio` and moves with the token's log-probability.
pub(super) fn clipped_term(ratio: f64, token: Token, bounds: RatioRange) -> Term {
    let unclipped = ratio * token.advantage;
    let clipped = bounds.clamp(ratio) * token.advantage;
    Term {
        value: -unclipped.min(clipped),
        slope: if unclipped <= clipped {
            -unclipped
        } else {
            0.0
        },
        clipped: !bounds.contains(ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradient_vanishes_only_where_the_clip_binds() {
        let bounds = RatioRange {
            low: 0.5,
            high: 2.0,
        };
        let cases = [
            // ratio, advantage, value, slope
            (1.0, 3.0, -3.0, -3.0),
            (2.0, 1.0, -2.0, -2.0), // on the edge, counts as inside
            (0.5, -1.0, 0.5, 0.5),  // on the edge, counts as inside
            (4.0, 1.0, -2.0, 0.0),
            (4.0, -1.0, 4.0, 4.0),
            (0.25, 1.0, -0.25, -0.25),
            (0.25, -1.0, 0.5, 0.0),
        ];
        for (ratio, advantage, value, slope) in cases {
            let token = Token {
                lp: 0.0,
                q: 0.0,
                advantage,
            };
            let clipped = !(0.5..=2.0).contains(&ratio);
            let expected = Term {
                value,
                slope,
                clipped,
            };
            assert_eq!(
                clipped_term(ratio, token, bounds),
                expected,
                "r = {ratio}, A = {advantage}"
            );
        }
    }

    #[test]
    fn thresholds_of_a_token_override_the_configured_ones() {
        let lp = [3.0_f32.ln(), 3.0_f32.ln()];
        let inputs = LossInputs {
            logprobs: Some(&[0.0, 0.0]),
            advantages: Some(&[1.0, 1.0]),
            clip_low_threshold: Some(&[0.0, 0.0]),
            clip_high_threshold: Some(&[1.5, 4.0]),
            ..LossInputs::default()
        };
        let output = ppo(&lp, &inputs, RatioRange::PPO).unwrap();
        assert!((output.loss + 1.5 + 3.0).abs() < 1e-6, "{}", output.loss);
        assert_eq!(output.gradient[0], 0.0);
        assert!((output.gradient[1] + 3.0).abs() < 1e-6);
        assert_eq!(output.metrics.get("clip_fraction:mean"), Some(0.5));
    }

    #[test]
    fn crossed_thresholds_are_refused_by_name_and_position() {
        let inputs = LossInputs {
            logprobs: Some(&[0.0, 0.0]),
            advantages: Some(&[1.0, 1.0]),
            clip_low_threshold: Some(&[0.5, 2.0]),
            ..LossInputs::default()
        };
        let error = ppo(&[0.0, 0.0], &inputs, RatioRange::PPO)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("clip_low_threshold") && error.contains("position 1"),
            "{error}"
        );
    }
}
