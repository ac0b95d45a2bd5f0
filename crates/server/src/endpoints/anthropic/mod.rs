//! The Anthropic API.

mod blocks;
mod conversation;
mod messages;
mod stream;

use axum::http::HeaderMap;
use tinkrs_wire::header as names;

pub(crate) use messages::{count_tokens, create};

use super::found;
use crate::error::ApiError;

/// The version of the API that all clients of today ask for.
const VERSION: &str = "2023-06-01";

/// Refuses a version of the API whose answers would look otherwise. A client that names none gets this one.
fn check_version(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(names::ANTHROPIC_VERSION) {
        None => Ok(()),
        Some(version) if version == VERSION => Ok(()),
        Some(version) => {
            let version = format!("`{}`", String::from_utf8_lossy(version.as_bytes()));
            Err(found(
                names::ANTHROPIC_VERSION,
                version,
                format!("`{VERSION}`"),
            ))
        }
    }
}
