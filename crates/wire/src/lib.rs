//! The wire form of the Tinker API, for clients and servers alike.
//!
//! [`op`] has one module for each operation, named like the endpoint, with its request body and
//! its result. [`endpoint`] is the table of all endpoints: their methods, paths, callers and bodies;
//! [`query`] has their queries, [`header`] the names of headers, [`error`] the error bodies. Data types
//! come from `tinkrs-types`; here they get their bytes.
//!
//! Two formats are in use. Passes and their results are protobuf ([`proto`], generated from
//! `proto/tinker_public.proto`), everything else is JSON ([`json`]): requests carry every
//! default and a `type` tag and leave nulls out. Decoding also takes what older clients send:
//! no tags, no defaults, explicit nulls.
//!
//! ```
//! use tinkrs_types::{Datum, LossFn};
//! use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
//!
//! let request = ForwardBackwardRequest {
//!     model_id: "s:train:0".into(),
//!     seq_id: 1,
//!     data: vec![Datum::from_prompt_completion(&[1, 2], &[3])?],
//!     loss_fn: LossFn::CrossEntropy,
//!     forward_only: false,
//! };
//! let bytes = request.clone().encode()?;
//! assert_eq!(ForwardBackwardRequest::decode(bytes.into())?, request);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod endpoint;
pub mod error;
pub mod header;
#[cfg(feature = "schema")]
pub mod openapi;
pub mod query;

pub mod compress;
pub mod json;
pub mod proto;

pub mod anthropic;
pub mod op;
pub mod openai;
pub mod text;

mod decimal;
mod little_endian;
mod model_input;
mod number_map;
mod place;
mod strict;
mod tensor;
mod text_or;

pub use error::{DecodeError, ErrorBody};
pub use json::Body;

/// The level of the API that this crate speaks.
pub const SDK_VERSION: &str = "0.36.0";
