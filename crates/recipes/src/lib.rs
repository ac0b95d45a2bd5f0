//! Training loops for Tinker as library functions.

mod error;

pub mod renderer;

#[cfg(test)]
mod testing;

pub use error::Error;
