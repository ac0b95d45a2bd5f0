//! An adapter in training.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tinkrs_types::training::{OptimStepOutput, OptimizerConfig, OptimizerParams};
use tinkrs_types::{Datum, ForwardBackwardOutput, LoraConfig};

use crate::{Error, Objective};

/// An adapter in training: its weights, the gradients since the last step, and its optimizer.
pub trait TrainingRun: Send {
    /// Returns the rank and the parts that are trained, without a seed.
    fn lora(&self) -> LoraConfig;

    /// Checks the data of a pass. Nothing is computed until the pass advances.
    ///
    /// A run has one pass at a time: an earlier one that is not done fails when it is advanced again,
    /// and so does one that an [`optim_step`](Self::optim_step) has overtaken.
    ///
    /// # Errors
    ///
    /// When the data cannot be used; the message names datum and position.
    fn begin(&mut self, request: PassRequest) -> Result<Box<dyn Pass>, Error>;

    /// Updates the weights with the gradients since the last step, and forgets those.
    ///
    /// # Errors
    ///
    /// Parameters of another optimizer than the run's or out of range, or a result that is not finite
    /// ([`Error::is_divergence`]).
    fn optim_step(&mut self, params: &OptimizerParams) -> Result<OptimStepOutput, Error>;

    /// Takes everything that the run needs to continue later as if it had never stopped. This is cheap:
    /// writing it can be left to another thread.
    fn state(&self) -> Box<dyn TrainingState>;

    /// Writes everything that the run needs to continue later to a file, replacing it whole or not at all.
    /// The same as writing the [state](Self::state), which may need memory for a copy.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    fn save_state(&self, file: &Path) -> Result<(), Error> {
        self.state().write(file)
    }

    /// Returns the adapter as it is now, to be added to a sampler of the same backend.
    fn adapter(&self) -> Adapter;

    /// Writes the adapter as it is now into a folder, in the layout of PEFT, with the head under the name
    /// that it has in checkpoints of the hosted service: `model.unembed_tokens`.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    fn save_adapter(&self, folder: &Path, base_model: &str) -> Result<(), Error>;
}

/// What a pass computes.
#[derive(Clone, Debug)]
pub struct PassRequest {
    /// The examples.
    pub data: Vec<Datum>,
    /// The loss.
    pub objective: Objective,
    /// Whether the loss's gradients are added to those of the run. Otherwise the pass changes nothing.
    pub backward: bool,
}

/// A pass under way. Dropping it before it is done changes nothing.
pub trait Pass: Send {
    /// Computes the next examples: as many as have `max_tokens` tokens together, and at least one.
    ///
    /// # Errors
    ///
    /// When the loss cannot be computed or a result is not finite. The pass has ended then.
    fn advance(&mut self, max_tokens: usize) -> Result<PassProgress, Error>;
}

/// How far a pass is.
#[derive(Clone, Debug, PartialEq)]
pub enum PassProgress {
    /// There are more examples.
    Continue,
    /// The pass is done, and the run has its gradients.
    Done(ForwardBackwardOutput),
}

/// The state of a run at one moment.
pub trait TrainingState: Send {
    /// Writes the state to a file, replacing it whole or not at all.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    fn write(&self, file: &Path) -> Result<(), Error>;
}

/// What to take from the state of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum StatePart {
    /// Everything: the run continues as if it had never stopped.
    Everything,
    /// The weights alone: there are no gradients, and the optimizer is a new one of this kind.
    Weights(OptimizerConfig),
}

/// An adapter in memory that never changes. A clone shares it.
///
/// What it holds is known to the backend that made it and to no other.
#[derive(Clone)]
pub struct Adapter(Arc<dyn Any + Send + Sync>);

impl Adapter {
    /// Wraps what a backend needs of an adapter.
    pub fn new<T: Any + Send + Sync>(adapter: Arc<T>) -> Self {
        Self(adapter)
    }

    /// Returns what a backend put in.
    ///
    /// # Errors
    ///
    /// When it was another backend.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Result<Arc<T>, Error> {
        let found = Arc::clone(&self.0).downcast();
        found.map_err(|_| Error::bad_request("the adapter was made by another backend"))
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").finish_non_exhaustive()
    }
}
