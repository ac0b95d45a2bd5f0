//! Training a model: the client, its operations, what they take and what they give.

pub(crate) mod chunk;
pub(crate) mod combine;
pub(crate) mod custom_loss;

mod client;
mod create;
#[cfg(feature = "autodiff")]
pub(crate) mod create_custom_loss;
mod forward_backward;
mod forward_backward_custom;
pub(crate) mod json_fallback;
mod load_state;
mod log_metrics;
mod optim_step;
mod request;
mod save_state;
mod save_weights_external;
mod save_weights_for_sampler;
mod sequencer;

pub use client::TrainingClient;
#[cfg(feature = "autodiff")]
pub use create_custom_loss::CustomLossHandle;
pub use custom_loss::CustomLoss;
pub use request::{BoxFuture, Request};

pub use tinkrs_types::training::{
    AdamParams, BatchedTensor, ClipBounds, Datum, DimuonParams, ExternalSave,
    ForwardBackwardOutput, LoraConfig, LossConfig, LossConfigValue, LossFn, LossInputs, LossSource,
    Metrics, ModelData, ModelInfo, OpenObject, OptimStepOutput, OptimizerConfig, OptimizerParams,
    OutputRecord, Provenance, ProvenanceSpan, SpanSource, SummedLoss,
};

/// What a training client can be asked to do, each made by the method of the same name.
pub mod operation {
    pub use super::create::{CreateLoraTrainingClient, CreateTrainingClientFromState};
    #[cfg(feature = "autodiff")]
    pub use super::create_custom_loss::{CreateCustomLoss, ForwardBackwardTraced};
    pub use super::forward_backward::ForwardBackward;
    pub use super::forward_backward_custom::ForwardBackwardCustom;
    pub use super::load_state::LoadState;
    pub use super::optim_step::OptimStep;
    pub use super::request::Operation;
    pub use super::save_state::SaveState;
    pub use super::save_weights_external::SaveWeightsExternal;
    pub use super::save_weights_for_sampler::{
        SaveWeightsAndGetSamplingClient, SaveWeightsForSampler,
    };
}
