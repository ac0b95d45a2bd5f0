//! What a pass minimises.

use std::fmt;
use std::sync::Arc;

use tinkrs_types::{Datum, InvalidInput, LossFn};

/// What a pass minimises.
#[derive(Clone, Debug)]
pub enum Objective {
    /// A loss that the backend has.
    BuiltIn(LossFn),
    /// A loss that is computed by the caller.
    Custom(Arc<dyn CustomLoss>),
}

impl From<LossFn> for Objective {
    fn from(loss: LossFn) -> Self {
        Self::BuiltIn(loss)
    }
}

impl From<&LossFn> for Objective {
    fn from(loss: &LossFn) -> Self {
        Self::BuiltIn(loss.clone())
    }
}

/// A loss of one datum, given as code: log-probabilities in, derivatives out.
///
/// It is called from any thread.
pub trait CustomLoss: fmt::Debug + Send + Sync {
    /// Checks a datum before anything is computed. Its targets are checked by the backend.
    ///
    /// # Errors
    ///
    /// When the datum lacks what the loss reads, or has what it does not know.
    fn check(&self, datum: &Datum) -> Result<(), InvalidInput>;

    /// Computes the loss of a datum from the log-probabilities of its targets, flat.
    ///
    /// # Errors
    ///
    /// When it cannot be computed; the text says why.
    fn evaluate(&self, logprobs: &[f32], datum: &Datum) -> Result<CustomOutput, String>;
}

/// The value and derivatives of a custom loss for one datum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomOutput {
    /// The loss. Those of several datums are added up.
    pub loss: f64,
    /// Its derivatives by the log-probabilities, as many as there are of them.
    pub gradient: Vec<f64>,
    /// Its metrics, by names that end in `:sum`, `:mean`, `:min` or `:max`.
    pub metrics: Vec<(String, f64)>,
}
