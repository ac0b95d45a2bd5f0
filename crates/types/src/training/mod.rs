//! Training: examples, losses, optimizers, adapters and results.

mod datum;
mod lora;
mod loss;
mod model;
mod optimizer;
mod output;
mod provenance;
mod saved;

pub use datum::{Datum, LossInputs};
pub use lora::LoraConfig;
pub use loss::{ClipBounds, LossConfig, LossConfigValue, LossFn};
pub use model::{ModelData, ModelInfo};
pub use optimizer::{
    AdamParams, DimuonParams, OpenObject, OptimStepOutput, OptimizerConfig, OptimizerParams,
};
pub use output::{BatchedTensor, ForwardBackwardOutput, Metrics, OutputRecord};
pub use provenance::{Provenance, ProvenanceSpan, SpanSource};
pub use saved::ExternalSave;
