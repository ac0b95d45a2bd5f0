//! `POST /forward`: a pass without gradients, for clients to 0.24.
//!
//! Newer ones send [`forward_backward`](super::forward_backward) with `forward_only`.

use super::forward_backward::{ForwardBackwardRequest, JsonInput};
use crate::{DecodeError, strict};
use serde::Deserialize;
use tinkrs_types::ModelId;

/// A request without gradients.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "ForwardRequest"))]
pub(crate) struct JsonRequest {
    forward_input: JsonInput,
    model_id: ModelId,
    seq_id: Option<i32>,
}

/// Reads the JSON body of an older client.
///
/// # Errors
/// If it is not one, or has a member that nothing reads.
pub fn decode(bytes: &[u8]) -> Result<ForwardBackwardRequest, DecodeError> {
    let json: JsonRequest = strict::decode(bytes)?;
    json.forward_input
        .into_request(json.model_id, json.seq_id, true)
}
