//! A reverse-mode tape for losses over log-probabilities.
//!
//! A custom loss sees numbers, not models: the log-probabilities of a datum's targets, and tensors that
//! came with it. A [`Tape`] computes with them in `f64`, records what it did, and takes gradients. The SDK
//! evaluates losses that are written as Rust expressions on it, the server those that are uploaded as
//! graphs; so a loss has the same gradient wherever it is computed.
//!
//! ```
//! use tinkrs_autodiff::{Binary, Dtype, Tape, Tensor, Unary};
//!
//! // The importance-weighted objective: −Σ e^(lp − old) · advantage.
//! let mut tape = Tape::default();
//! let vector = |values: Vec<f64>| Tensor::new(vec![values.len()], values, Dtype::Float);
//! let logprobs = tape.variable(vector(vec![-1.0, -2.0]))?;
//! let old = tape.constant(vector(vec![-1.0, -2.0]))?;
//! let advantages = tape.constant(vector(vec![1.0, -0.5]))?;
//! let difference = tape.binary(Binary::Sub, logprobs, old)?;
//! let ratio = tape.unary(Unary::Exp, difference)?;
//! let weighted = tape.binary(Binary::Mul, ratio, advantages)?;
//! let sum = tape.sum(weighted)?;
//! let loss = tape.unary(Unary::Neg, sum)?;
//! assert_eq!(tape.tensor(loss).values, [-0.5]);
//! assert_eq!(tape.gradients(loss)[logprobs], Some(vec![-1.0, 0.5]));
//! # Ok::<(), tinkrs_autodiff::Error>(())
//! ```
//!
//! 1. [`Unary`], [`Binary`]: functions of single numbers, with their slopes;
//! 2. [`Tensor`]: numbers in a shape, and which cell of one goes with which of another;
//! 3. [`Tape`]: operations, their record and their gradients; reductions along axes.

mod element;
mod error;
mod reduce;
mod tape;
mod tensor;

pub use element::{Binary, Unary, sigmoid, softplus};
pub use error::Error;
pub use tape::{Id, Tape};
pub use tensor::{Cells, Dtype, Lines, Tensor, size, strides, together, walk};
