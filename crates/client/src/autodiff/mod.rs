//! Losses written as tensor expressions and differentiated for you.
//!
//! A loss is ordinary Rust over [`Var`]s: arithmetic, functions, sums. [`loss`] evaluates it on the
//! log-probabilities of a batch and computes its gradients by walking the operations backwards.
//! A [`TracedLoss`] is written the same way, but for one datum, and a server can compute it.
//!
//! ```
//! use tinkrs::autodiff;
//! use tinkrs::training::Metrics;
//! use tinkrs::Datum;
//!
//! // A clipped policy gradient.
//! let ppo = autodiff::loss(|data, logprobs| {
//!     let mut loss = autodiff::Var::from(0.0);
//!     for (datum, lp) in data.iter().zip(logprobs) {
//!         let advantages = lp.input(datum, "advantages");
//!         let ratio = (lp - lp.input(datum, "logprobs")).exp();
//!         loss -= (ratio * advantages).minimum(ratio.clamp(0.8, 1.2) * advantages).sum();
//!     }
//!     let metrics = Metrics::from([("my_loss:sum".to_owned(), loss.value())]);
//!     Ok((loss, metrics))
//! });
//!
//! let datum = Datum::reinforcement(vec![1, 2], [2, 3], [-1.0, -1.0], [1.0, 1.0])?;
//! let result = ppo(&[datum], &[&[-1.0, 0.0]])?;
//! assert_eq!(result.loss, -(1.0 + 1.2));
//! assert_eq!(result.gradients, [[-1.0, 0.0]], "the second ratio is clipped");
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

mod functions;
mod loss;
mod operators;
mod tape;
mod tensor;
mod traced;
mod var;

mod compute;
mod graph;
mod op;

#[cfg(test)]
mod tests;

pub use functions::Position;
pub use loss::loss;
pub use tape::ExpressionError;
pub use tensor::{Shape, Tensor};
pub use traced::TracedLoss;
pub use var::Var;

pub use tinkrs_types::custom_loss::{CustomLossGraph, CustomLossInput, CustomLossNode, NodeOp};
