//! Training runs, checkpoints and samplers, as the metadata endpoints list them.

mod checkpoint;
mod cursor;
mod sampler;
mod training_run;

pub use checkpoint::*;
pub use cursor::*;
pub use sampler::*;
pub use training_run::*;
