//! Policy gradient whose importance ratio is clipped and held constant.
//!
//! ```text
//! r_i      = exp(lp_i − q_i)
//! c_i      = clamp(r_i, low, high)          (held constant)
//! L        = − Σ_i w_i · c_i · lp_i · A_i
//! dL/dlp_i = − w_i · c_i · A_i
//! ```
//!
//! Unlike in [`ppo`](super::ppo()), clipping bounds the gradient and never removes it.

use super::inputs::{PolicyInputs, Token};
use super::{LossInputs, LossOutput, RatioRange, Term};
use crate::Error;

/// Evaluates the loss of one datum.
///
/// # Errors
///
/// `logprobs` or `advantages` missing; a wrong length; a non-finite number where it counts; a lower
/// clip bound above the upper one.
pub fn cispo(lp: &[f32], inputs: &LossInputs<'_>, bounds: RatioRange) -> Result<LossOutput, Error> {
    PolicyInputs::new(lp, inputs)?.sum(Some(bounds), term)
}

pub(super) fn term(token: Token, bounds: RatioRange) -> Term {
    let ratio = token.ratio();
    let slope = -bounds.clamp(ratio) * token.advantage;
    Term {
        value: slope * token.lp,
        slope,
        clipped: !bounds.contains(ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_bounds_the_gradient_without_removing_it() {
        // A ratio far above and one far below the bounds.
        let inputs = LossInputs {
            logprobs: Some(&[-9.0, -1.0]),
            advantages: Some(&[1.0, -2.0]),
            ..LossInputs::default()
        };
        let bounds = RatioRange {
            low: 0.5,
            high: 4.0,
        };
        let output = cispo(&[-1.0, -9.0], &inputs, bounds).unwrap();
        assert_eq!(output.gradient, [-4.0, 1.0]);
        assert_eq!(output.loss, 4.0 - 9.0);
        assert_eq!(output.metrics.get("clip_fraction:mean"), Some(1.0));
    }
}
