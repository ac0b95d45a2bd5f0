//! How the Anthropic API says that a request is refused.

use serde::{Deserialize, Serialize};

/// The body of a refused request: `{"type": "error", "error": {"message": …}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnthropicErrorBody {
    /// `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What went wrong.
    pub error: AnthropicError,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnthropicError {
    /// The kind of error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A sentence that names the member.
    pub message: String,
}

impl AnthropicError {
    /// Says why a request was answered with this status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            408 | 504 => "timeout_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        Self {
            kind: kind.to_owned(),
            message: message.into(),
        }
    }
}

impl AnthropicErrorBody {
    /// Says why a request was answered with this status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            kind: "error".to_owned(),
            error: AnthropicError::new(status, message),
        }
    }
}
