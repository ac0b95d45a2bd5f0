//! Requests that are promised a result: what they are called in the journal, and how they are read.
//!
//! A request is journaled as it was sent and read again after a restart, by the same code.

use bytes::Bytes;
use serde_json::Value;
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::op::create_custom_loss::CreateCustomLossRequest;
use tinkrs_wire::op::create_model::CreateModelRequest;
use tinkrs_wire::op::forward;
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tinkrs_wire::op::load_weights::LoadWeightsRequest;
use tinkrs_wire::op::optim_step::OptimStepRequest;
use tinkrs_wire::op::save_weights::SaveWeightsRequest;
use tinkrs_wire::op::save_weights_external::SaveWeightsExternalRequest;
use tinkrs_wire::op::save_weights_for_sampler::SaveWeightsForSamplerRequest;
use tinkrs_wire::op::unload_model::UnloadModelRequest;
use tinkrs_wire::{Body, DecodeError};

use crate::error::ApiError;
use crate::unknown;

/// What a journaled request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    CreateModel,
    /// A pass, as a message.
    Pass,
    /// A pass, as the JSON of clients to 0.24.
    PassJson,
    /// A pass without gradients, as the JSON of clients to 0.24.
    Forward,
    OptimStep,
    SaveWeights,
    SaveWeightsForSampler,
    SaveWeightsExternal,
    LoadWeights,
    UnloadModel,
    Sample,
    CreateCustomLoss,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::CreateModel,
        Self::Pass,
        Self::PassJson,
        Self::Forward,
        Self::OptimStep,
        Self::SaveWeights,
        Self::SaveWeightsForSampler,
        Self::SaveWeightsExternal,
        Self::LoadWeights,
        Self::UnloadModel,
        Self::Sample,
        Self::CreateCustomLoss,
    ];

    /// Returns the name in the journal.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CreateModel => "create_model",
            Self::Pass => "forward_backward",
            Self::PassJson => "forward_backward_json",
            Self::Forward => "forward",
            Self::OptimStep => "optim_step",
            Self::SaveWeights => "save_weights",
            Self::SaveWeightsForSampler => "save_weights_for_sampler",
            Self::SaveWeightsExternal => "save_weights_external",
            Self::LoadWeights => "load_weights",
            Self::UnloadModel => "unload_model",
            Self::Sample => "sample",
            Self::CreateCustomLoss => "create_custom_loss",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether an operation may have changed what a run is: its weights, gradients or optimizer.
    pub(crate) fn changes_run(self) -> bool {
        match self {
            Self::CreateModel
            | Self::Pass
            | Self::PassJson
            | Self::OptimStep
            | Self::LoadWeights
            | Self::UnloadModel => true,
            Self::Forward
            | Self::SaveWeights
            | Self::SaveWeightsForSampler
            | Self::SaveWeightsExternal
            | Self::Sample
            | Self::CreateCustomLoss => false,
        }
    }

    /// Whether a repeated request may differ from the first one. Official clients draw a new
    /// `sampling_session_seq_id` when they repeat an unnamed save.
    pub(crate) fn may_vary(self) -> bool {
        self == Self::SaveWeightsForSampler
    }

    /// Reads a request, every part of it.
    pub(crate) fn read(self, body: &Bytes) -> Result<Request, ApiError> {
        Ok(match self {
            Self::CreateModel => {
                read_json::<CreateModelRequest>(body).map(|_| Request::CreateModel)?
            }
            Self::Pass => Request::Pass(ForwardBackwardRequest::decode(body.clone())?),
            Self::PassJson => Request::Pass(read_pass(body, ForwardBackwardRequest::decode_json)?),
            Self::Forward => Request::Pass(read_pass(body, forward::decode)?),
            Self::OptimStep => Request::OptimStep(read_json(body)?),
            Self::SaveWeights => Request::SaveWeights(read_json(body)?),
            Self::SaveWeightsForSampler => Request::SaveWeightsForSampler(read_json(body)?),
            Self::SaveWeightsExternal => Request::SaveWeightsExternal(read_json(body)?),
            Self::LoadWeights => Request::LoadWeights(read_json(body)?),
            Self::UnloadModel => {
                read_json::<UnloadModelRequest>(body).map(|_| Request::UnloadModel)?
            }
            Self::Sample => Request::Sample(read_json(body)?),
            Self::CreateCustomLoss => {
                read_json::<CreateCustomLossRequest>(body).map(|_| Request::CreateCustomLoss)?
            }
        })
    }
}

/// A request that was read.
#[derive(Debug)]
pub(crate) enum Request {
    /// What there is to know is in the run's record.
    CreateModel,
    Pass(ForwardBackwardRequest),
    OptimStep(OptimStepRequest),
    SaveWeights(SaveWeightsRequest),
    SaveWeightsForSampler(SaveWeightsForSamplerRequest),
    SaveWeightsExternal(SaveWeightsExternalRequest),
    LoadWeights(LoadWeightsRequest),
    UnloadModel,
    Sample(SampleRequest),
    /// It never waits.
    CreateCustomLoss,
}

/// The most values of a JSON body: two bytes of it take dozens in memory.
const JSON_VALUES: usize = 4 << 20;

/// Reads a JSON body whose every member is known.
pub(crate) fn read_json<T: Body>(bytes: &[u8]) -> Result<T, ApiError> {
    check_values(bytes)?;
    let body = T::decode(bytes)?;
    let sent: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let known = serde_json::to_value(&body).unwrap_or_default();
    match unknown::member(&sent, &known) {
        None => Ok(body),
        Some(name) => Err(ApiError::unknown(&name)),
    }
}

/// Counts what separates values, before memory is set aside for each of them.
pub(crate) fn check_values(bytes: &[u8]) -> Result<(), ApiError> {
    let separators = bytes.iter().filter(|byte| b",[{".contains(byte));
    match separators.count() {
        0..=JSON_VALUES => Ok(()),
        _ => Err(ApiError::too_large(format!(
            "the body has more than {JSON_VALUES} values"
        ))),
    }
}

/// Reads the JSON of an older client, and makes sure that nothing in it goes unread.
fn read_pass(
    body: &[u8],
    read: impl FnOnce(&[u8]) -> Result<ForwardBackwardRequest, DecodeError>,
) -> Result<ForwardBackwardRequest, ApiError> {
    check_values(body)?;
    let request = read(body)?;
    let sent = serde_json::from_slice(body).unwrap_or_default();
    match unknown::pass_member(&sent) {
        None => Ok(request),
        Some(name) => Err(ApiError::unknown(&name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::from_name("juggle"), None);
    }
}
