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
//! The names that nearly every program needs are in the root, the others in a module each:
//! [`input`] and [`tensor`] for what a model reads, [`training`] and [`sampling`] for what to do
//! with it, [`custom_loss`] for losses as graphs, [`rest`], [`session`], [`service`] and [`admin`]
//! for what a server tells, and [`protocol`] for what clients and servers need among themselves.
//!
//! What a server sends is `#[non_exhaustive]`, since each release of the service adds to it: make
//! it with `new` or `default` and set the remaining fields. What a caller writes (such as
//! [`AdamParams`]) is a plain struct with defaults.

mod checkpoint_ref;
mod error;
mod id;
mod path;
mod run_name;
mod timestamp;

pub mod input;
pub mod tensor;

pub mod custom_loss;
pub mod sampling;
pub mod training;

pub mod admin;
pub mod rest;
pub mod service;
pub mod session;

pub mod protocol;

pub use checkpoint_ref::{CheckpointRef, Which};
pub use error::InvalidInput;
pub use id::{LossId, ModelId, ProjectId, RequestId, SamplingSessionId, SequenceId, SessionId};
pub use input::ModelInput;
pub use path::{CheckpointKind, TinkerPath};
pub use run_name::{NAME_LABEL, RESUME_LABEL, RunName};
pub use sampling::{SampleOutput, SamplingParams};
pub use tensor::TensorData;
pub use training::{AdamParams, Datum, ForwardBackwardOutput, LoraConfig, LossFn};

/// A point in time, as RFC 3339 text on the wire.
pub use jiff::Timestamp;

/// JSON values, for what has no form of its own: details of events, arguments of graph nodes.
pub use serde_json;

/// User-supplied labels of a run, checkpoint or session.
pub type UserMetadata = std::collections::BTreeMap<String, String>;
