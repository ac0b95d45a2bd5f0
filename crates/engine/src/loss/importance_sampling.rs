//! Policy gradient with an importance ratio.
//!
//! ```text
//! r_i      = exp(lp_i − q_i)
//! L        = − Σ_i w_i · r_i · A_i
//! dL/dlp_i = − w_i · r_i · A_i
//! ```
//!
//! The ratio corrects for the sampler that drew the tokens not being the policy that learns from them.

use super::inputs::{PolicyInputs, Token};
use super::{LossInputs, LossOutput, Term};
use crate::Error;

/// Evaluates the importance-sampled policy gradient of one datum.
///
/// # Errors
///
/// `logprobs` or `advantages` missing; a wrong length; a non-finite number where it counts.
pub fn importance_sampling(lp: &[f32], inputs: &LossInputs<'_>) -> Result<LossOutput, Error> {
    PolicyInputs::new(lp, inputs)?.sum(None, |token, _| term(token))
}

pub(super) fn term(token: Token) -> Term {
    let value = -token.ratio() * token.advantage;
    Term {
        value,
        slope: value,
        clipped: false,
    }
}
