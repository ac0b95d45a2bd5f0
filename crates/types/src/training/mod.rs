//! Training: examples, losses, optimizers, adapters and results.

mod datum;
mod lora;
mod loss;
mod model;
mod optimizer;
mod output;
mod provenance;
mod saved;

pub use datum::*;
pub use lora::*;
pub use loss::*;
pub use model::*;
pub use optimizer::*;
pub use output::*;
pub use provenance::*;
pub use saved::*;
