//! Plain data types of the Tinker API.
//!
//! A training loop builds [`Datum`]s, names a [`LossFn`] and [`AdamParams`], and reads
//! [`ForwardBackwardOutput`]s and [`SampleOutput`]s. Everything here is data: no I/O, no
//! clock, no randomness. Values are checked when they are made, so a value that exists can be
//! sent; [`InvalidInput`] names the field, what was found and what is allowed.
//!
//! ```
//! use tinkrs_types::{Datum, ModelInput};
//!
//! // Learn to answer "7 8" after the prompt "5 6": the loss sees the answer only.
//! let datum = Datum::from_prompt_completion(&[5, 6], &[7, 8])?;
//! assert_eq!(datum.model_input().to_tokens(), Some(vec![5, 6, 7]));
//! assert_eq!(datum.target_tokens().unwrap().as_i64(), Some(&[6, 7, 8][..]));
//! assert_eq!(datum.weights().unwrap().as_f32(), Some(&[0.0, 1.0, 1.0][..]));
//! # Ok::<(), tinkrs_types::InvalidInput>(())
//! ```
//!
//! Suggested reading order: identifiers and paths, inputs, what to do with them, outputs,
//! then the listing types of the metadata endpoints.

mod error;
mod id;
mod number;
mod path;
mod timestamp;

mod datum;
mod model_input;
mod provenance;
mod tensor;

mod custom_loss;
mod lora;
mod loss;
mod optimizer;
mod sampling;

mod forward_backward;
mod future;
mod model;
mod sample;
mod topk;

mod admin;
mod checkpoint;
mod service;
mod session;
mod telemetry;
mod training_run;

pub use admin::{
    AuditEntry, AuditEventType, AuditLog, BillingEvent, BillingEventInfo, BillingSession,
    BillingUsage, StorageUsage, StorageUsageRow,
};
pub use checkpoint::{
    Checkpoint, CheckpointPage, CopiedWeights, ExternalSave, ExternalWeightsUrls, ImportedWeights,
    TTL_MAX_SECONDS, TTL_MIN_SECONDS, WeightsInfo, check_ttl,
};
pub use custom_loss::{CustomLossGraph, CustomLossInput, CustomLossNode, NodeOp};
pub use datum::{Datum, LossInputs, key};
pub use error::InvalidInput;
pub use forward_backward::{BatchedTensor, ForwardBackwardOutput, Metrics, OutputRecord};
pub use future::{
    Completion, ErrorCategory, FailedRequest, Promise, QueueState, QueueStatus, RequestType,
};
pub use id::{
    LossId, ModelId, ProjectId, RequestId, SAMPLE_SEQ_BLOCK, SamplingSessionId, SequenceId,
    SessionId,
};
pub use lora::LoraConfig;
pub use loss::{ClipBounds, LossConfig, LossConfigValue, LossFn};
pub use model::{ModelData, ModelInfo, SamplerInfo};
pub use model_input::{Chunk, Dmel, Image, ImageAssetPointer, ImageFormat, ModelInput};
pub use number::JsonNumber;
pub use optimizer::{
    AdamParams, DimuonParams, OpenObject, OptimStepOutput, OptimizerConfig, OptimizerParams,
};
pub use path::{CheckpointKind, TinkerPath};
pub use provenance::{Provenance, ProvenanceSpan, SpanSource};
pub use sample::{PromptAltTokens, SampleOutput, SampledSequence, StopReason};
pub use sampling::{SampleOptions, SamplingParams, Stop};
pub use service::{
    ClientConfig, Cursor, DynamicConfig, ServerCapabilities, SupportedModel, WhoAmI,
};
pub use session::{
    AccessScope, FailureCategory, FailureReason, FinishReason, SearchCursor, SearchOwner,
    SessionInfo, SessionSearch, SessionSearchPage, SessionStatus, SessionSummary, StatusQuery,
    TraceExport, TraceStatus,
};
pub use telemetry::{Severity, TelemetryBatch, TelemetryEvent, TelemetryEventKind};
pub use tensor::{CsrIndices, Dtype, TensorData, TensorValues};
pub use topk::{TOPK_FILLER_LOGPROB, TopkLogprobs};
pub use training_run::{TrainingRun, TrainingRunPage};

/// A point in time, as RFC 3339 text on the wire.
pub use jiff::Timestamp;

/// User-supplied labels of a run, checkpoint or session.
pub type UserMetadata = std::collections::BTreeMap<String, String>;
