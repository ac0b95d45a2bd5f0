//! The Anthropic API.

mod blocks;
mod conversation;
mod messages;
mod stream;
mod tools;

use axum::http::HeaderMap;
use tinkrs_wire::header as names;

pub(crate) use messages::{count_tokens, create};

use super::found;
use crate::error::ApiError;

/// The versions of the API that clients of today ask for. What the later one takes away is in requests; both read the
/// same answers.
const VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];

/// Refuses a version of the API whose answers might look otherwise.
fn check_version(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(names::ANTHROPIC_VERSION) {
        None => Ok(()),
        Some(version) if VERSIONS.iter().any(|known| version == known) => Ok(()),
        Some(version) => {
            let version = format!("`{}`", String::from_utf8_lossy(version.as_bytes()));
            Err(found(
                names::ANTHROPIC_VERSION,
                version,
                format!("`{}`", VERSIONS.join("` or `")),
            ))
        }
    }
}
