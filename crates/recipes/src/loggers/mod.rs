//! Metrics of a run for other programs: TensorBoard and tables.

mod csv;
mod tensorboard;

pub use csv::CsvLog;
pub use tensorboard::TensorBoardLog;

use crate::Error;
use crate::run::Numbers;

/// What takes the numbers of each step and evaluation.
pub trait MetricsLog: Send {
    /// Takes the numbers of a step, from 0, or of an evaluation after so many steps. A run that resumes gives the
    /// numbers of steps again that it does again.
    ///
    /// # Errors
    /// If they cannot be written.
    fn write(&mut self, step: usize, numbers: &Numbers) -> Result<(), Error>;
}
