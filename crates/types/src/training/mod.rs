//! Training: examples, losses, optimizers, adapters and results.

mod datum;
mod lora;
mod loss;
mod loss_source;
mod model;
mod optimizer;
mod output;
mod provenance;
mod saved;

pub use datum::*;
pub use lora::*;
pub use loss::*;
pub use loss_source::*;
pub use model::*;
pub use optimizer::*;
pub use output::*;
pub use provenance::*;
pub use saved::*;
