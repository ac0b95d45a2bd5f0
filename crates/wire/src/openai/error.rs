//! How the OpenAI API says that a request is refused.

use serde::{Deserialize, Serialize};

/// The body of a refused request: `{"error": {"message": …}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenAiErrorBody {
    /// What went wrong.
    pub error: OpenAiError,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenAiError {
    /// A sentence that names the member.
    pub message: String,
    /// The kind of error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The member of the request that is wrong, if one is.
    pub param: Option<String>,
    /// A word for programs, if there is one.
    pub code: Option<String>,
}

impl OpenAiErrorBody {
    /// Says why a request was answered with this status. `param` is the member that is wrong.
    pub fn new(status: u16, message: impl Into<String>, param: Option<String>) -> Self {
        let (kind, code) = match status {
            401 => ("authentication_error", Some("invalid_api_key")),
            403 => ("permission_error", None),
            404 if param.as_deref() == Some("model") => {
                ("invalid_request_error", Some("model_not_found"))
            }
            429 => ("rate_limit_error", Some("rate_limit_exceeded")),
            500.. => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        Self {
            error: OpenAiError {
                message: message.into(),
                kind: kind.to_owned(),
                param,
                code: code.map(ToOwned::to_owned),
            },
        }
    }
}
