//! JSON bodies whose every member is known.

use tinkrs_wire::{Body, DecodeError};

use crate::error::ApiError;

/// The most values of a JSON body: two bytes of it take dozens in memory.
const JSON_VALUES: usize = 4 << 20;

/// Reads a JSON body whose every member is known.
pub(crate) fn read_json<T: Body>(bytes: &[u8]) -> Result<T, ApiError> {
    read_json_with(bytes, T::decode_strict)
}

/// Reads a JSON body with a reader of its own.
pub(crate) fn read_json_with<T>(
    bytes: &[u8],
    read: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
) -> Result<T, ApiError> {
    check_values(bytes)?;
    Ok(read(bytes)?)
}

/// What a value and an object take in memory at most, beside their text.
const VALUE_BYTES: u64 = 32;
const OBJECT_BYTES: u64 = 640;

/// Estimates how much memory decoding a JSON body takes, from its counts alone.
pub(crate) fn json_bytes(bytes: &[u8]) -> u64 {
    let weight = |byte: &u8| match byte {
        b',' | b'[' => VALUE_BYTES,
        b'{' => OBJECT_BYTES,
        _ => 0,
    };
    bytes.len() as u64 + bytes.iter().map(weight).sum::<u64>()
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
