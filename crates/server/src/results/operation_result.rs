//! How operations end, in the form in which results are kept.
//!
//! A result is encoded once, by the thread that computed it, and is from then on nothing but bytes:
//! in memory, in its file and on the wire.

use bytes::Bytes;
use serde::Serialize;
use tinkrs_types::protocol::FailedRequest;
use tinkrs_types::service::ErrorCategory;
use tinkrs_types::{ForwardBackwardOutput, SampleOutput};
use tinkrs_wire::op::{asample, forward_backward};
use tinkrs_wire::{Body, DecodeError, header};

/// What the bytes of an outcome are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultFormat {
    /// A JSON object.
    Json,
    /// The message of a pass.
    Pass,
    /// The message of a sample.
    Sample,
    /// The JSON of a failure.
    Failed,
}

impl ResultFormat {
    pub(crate) const ALL: [Self; 4] = [Self::Json, Self::Pass, Self::Sample, Self::Failed];

    /// Returns the name under which it is stored.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Pass => "pass",
            Self::Sample => "sample",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationResult {
    pub(crate) kind: ResultFormat,
    pub(crate) bytes: Bytes,
}

impl OperationResult {
    fn new(kind: ResultFormat, bytes: Vec<u8>) -> Self {
        let bytes = Bytes::from(bytes);
        Self { kind, bytes }
    }

    /// Ends with an object that has a `type`.
    pub(crate) fn body(body: &impl Body) -> Self {
        Self::new(ResultFormat::Json, body.encode())
    }

    /// Ends with an object.
    pub(crate) fn json(value: &impl Serialize) -> Self {
        let bytes = serde_json::to_vec(value).expect("results have text keys");
        Self::new(ResultFormat::Json, bytes)
    }

    /// Ends with the result of a pass.
    pub(crate) fn pass(output: ForwardBackwardOutput) -> Self {
        Self::new(ResultFormat::Pass, forward_backward::encode_result(output))
    }

    /// Ends with samples.
    pub(crate) fn sample(output: SampleOutput) -> Self {
        Self::new(ResultFormat::Sample, asample::encode_result(output))
    }

    /// Ends with a failure.
    pub(crate) fn failed(error: impl Into<String>, category: ErrorCategory) -> Self {
        let failure = FailedRequest {
            error: error.into(),
            category,
        };
        let bytes = serde_json::to_vec(&failure).expect("a failure is two texts");
        Self::new(ResultFormat::Failed, bytes)
    }

    /// Ends with a failure that the caller can do something about.
    pub(crate) fn user_error(message: impl Into<String>) -> Self {
        Self::failed(message, ErrorCategory::User)
    }

    /// Ends with a failure of this server.
    pub(crate) fn server_error(message: impl Into<String>) -> Self {
        Self::failed(message, ErrorCategory::Server)
    }

    /// Returns the JSON that clients to 0.18 expect, who do not take messages.
    pub(crate) fn to_json(&self) -> Result<Bytes, DecodeError> {
        let value = match self.kind {
            ResultFormat::Json | ResultFormat::Failed => return Ok(self.bytes.clone()),
            ResultFormat::Pass => {
                let output = forward_backward::decode_result(header::PROTOBUF, self.bytes.clone())?;
                forward_backward::encode_json_result(&output)
            }
            ResultFormat::Sample => {
                let output = asample::decode_result(header::PROTOBUF, self.bytes.clone())?;
                asample::encode_json_result(&output)
            }
        };
        Ok(Bytes::from(value.to_string()))
    }
}
