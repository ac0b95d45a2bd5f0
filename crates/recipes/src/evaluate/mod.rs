//! Measuring a model.

mod nll;

pub use nll::mean_nll;
