//! Optimizers: what turns the gradients of a run into its next parameters.
//!
//! A new one is a file beside [`adamw`], a variant of [`Optimizer`], and its parameters in
//! `tinkrs-types`. A run, its saved state and everything above the engine pass them on without looking.

pub mod adamw;

use tinkrs_types::InvalidInput;
use tinkrs_types::training::{OptimizerConfig, OptimizerParams};

use crate::Error;

pub use adamw::{AdamW, Moments};

/// A tensor to be trained, with the gradient accumulated for it.
#[derive(Debug)]
pub struct Trained<'a> {
    /// The name under which the optimizer keeps the tensor's moments.
    pub name: &'a str,
    /// The tensor, changed by a step.
    pub values: &'a mut [f32],
    /// Its gradient, of the same length.
    pub gradient: &'a [f32],
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepNorms {
    /// Norm of all gradients together, as accumulated.
    pub gradient: f64,
    /// The same after clipping.
    pub clipped_gradient: f64,
    /// Norm of the change of all tensors together, weight decay included.
    pub update: f64,
}

/// The most numbers that an optimizer gathers for each number that it trains.
pub(crate) const MOST_KEPT: usize = 2;

/// The optimizer of a training run, with what it has gathered so far.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Optimizer {
    /// AdamW, the default.
    AdamW(AdamW),
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::AdamW(AdamW::default())
    }
}

impl Optimizer {
    /// Makes an optimizer that has taken no step.
    ///
    /// # Errors
    ///
    /// If it is not one of [`all`](Self::all), or has members that it does not know.
    pub fn new(config: &OptimizerConfig) -> Result<Self, Error> {
        match config {
            OptimizerConfig::AdamW => Ok(Self::AdamW(AdamW::default())),
            other => {
                let allowed = Self::all().map(|known| known.name().to_owned()).join(", ");
                Err(InvalidInput::new("optimizer_config.type", other.name(), allowed).into())
            }
        }
    }

    /// Lists the optimizers that can be chosen.
    #[must_use]
    pub fn all() -> [OptimizerConfig; 1] {
        [OptimizerConfig::AdamW]
    }

    /// Returns what an optimizer of this kind is chosen with.
    #[must_use]
    pub fn config(&self) -> OptimizerConfig {
        match self {
            Self::AdamW(_) => OptimizerConfig::AdamW,
        }
    }

    /// Returns the number of steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        match self {
            Self::AdamW(adamw) => adamw.steps,
        }
    }

    /// Takes one step on `tensors`.
    ///
    /// Gradients are read and left as they are; the caller clears them.
    ///
    /// # Errors
    ///
    /// Parameters of another optimizer or out of range, a gradient of another length than its tensor, or
    /// a number that is not finite in a gradient or in the outcome. Nothing is changed then.
    pub fn step(
        &mut self,
        params: &OptimizerParams,
        tensors: &mut [Trained<'_>],
    ) -> Result<StepNorms, Error> {
        match (self, params) {
            (Self::AdamW(adamw), OptimizerParams::Adam(params)) => adamw.step(params, tensors),
            (this, other) => {
                let allowed = format!("{}, the optimizer of this model", this.config().name());
                Err(InvalidInput::new("optimizer_params.type", other.name(), allowed).into())
            }
        }
    }

    /// Lists the tensors of a saved state.
    pub(crate) fn tensors(&self) -> Vec<(String, &[f32])> {
        match self {
            Self::AdamW(adamw) => adamw.tensors().collect(),
        }
    }

    /// Finds where a tensor of a saved state belongs; `None` if it is not of this optimizer.
    pub(crate) fn tensor_mut(&mut self, saved_name: &str) -> Option<&mut Vec<f32>> {
        match self {
            Self::AdamW(adamw) => adamw.tensor_mut(saved_name),
        }
    }

    pub(crate) fn set_steps(&mut self, steps: u64) {
        match self {
            Self::AdamW(adamw) => adamw.steps = steps,
        }
    }

    /// Whether what is kept for a trained tensor, if anything, is of its length.
    pub(crate) fn fits(&self, name: &str, elements: usize) -> bool {
        match self {
            Self::AdamW(adamw) => adamw.fits(name, elements),
        }
    }
}

#[cfg(test)]
mod tests {
    use tinkrs_types::training::DimuonParams;

    use super::*;

    #[test]
    fn parameters_of_another_optimizer_are_refused_by_name() {
        let params = OptimizerParams::Dimuon(DimuonParams::new(0.1));
        let mut optimizer = Optimizer::default();
        let error = optimizer.step(&params, &mut []).unwrap_err();
        assert!(error.is_bad_request());
        assert!(error.to_string().contains("dimuon"), "{error}");
        assert_eq!(optimizer, Optimizer::default());
    }
}
