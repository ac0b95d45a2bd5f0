//! JSON bodies whose every member is known.

use serde_json::Value;
use tinkrs_wire::{Body, DecodeError};

use crate::error::ApiError;
use crate::unknown;

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

/// Reads a JSON body by its own reader, whose every member is known.
pub(crate) fn read_json_with<T>(
    bytes: &[u8],
    read: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
) -> Result<T, ApiError> {
    check_values(bytes)?;
    let request = read(bytes)?;
    let sent = serde_json::from_slice(bytes).unwrap_or_default();
    match unknown::pass_member(&sent) {
        None => Ok(request),
        Some(name) => Err(ApiError::unknown(&name)),
    }
}
