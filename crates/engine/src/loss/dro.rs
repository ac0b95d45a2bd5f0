//! Policy gradient with a quadratic penalty on leaving the sampler.
//!
//! ```text
//! L        = − Σ_i w_i · [ lp_i · A_i − (beta / 2) · (lp_i − q_i)² ]
//! dL/dlp_i = − w_i · [ A_i − beta · (lp_i − q_i) ]
//! ```
//!
//! `beta` has no default: none is documented, and a guess would quietly change what is optimised. A zero
//! advantage marks a position outside the loss here too, so the penalty does not apply to it: prompt
//! tokens carry a zero instead of a log-probability.

use super::inputs::{PolicyInputs, Token};
use super::{LossInputs, LossOutput, Term};
use crate::Error;

/// Evaluates the penalised policy gradient of one datum.
///
/// # Errors
///
/// `logprobs` or `advantages` missing; a wrong length; a non-finite number where it counts.
pub fn dro(lp: &[f32], inputs: &LossInputs<'_>, beta: f64) -> Result<LossOutput, Error> {
    PolicyInputs::new(lp, inputs)?.sum(None, |token, _| term(token, beta))
}

pub(super) fn term(token: Token, beta: f64) -> Term {
    let distance = token.lp - token.q;
    Term {
        value: -(token.lp * token.advantage - beta / 2.0 * distance * distance),
        slope: -(token.advantage - beta * distance),
        clipped: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_penalty_pulls_back_to_the_sampler() {
        let inputs = LossInputs {
            logprobs: Some(&[-1.0]),
            advantages: Some(&[0.5]),
            ..LossInputs::default()
        };
        let output = dro(&[-3.0], &inputs, 0.25).unwrap();
        assert_eq!(output.loss, 1.5 + 0.125 * 4.0);
        assert_eq!(output.gradient, [-0.5 - 0.25 * 2.0]);
    }
}
