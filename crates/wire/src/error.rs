//! What goes wrong on the wire, and how a server says so.

use crate::place;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tinkrs_types::InvalidInput;

/// Bytes that are not the message they should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are not this protobuf message.
    #[error("not a protobuf message of this type")]
    Protobuf(#[from] prost::DecodeError),

    /// The bytes are not this JSON object.
    #[error("unexpected JSON")]
    Json(#[from] serde_json::Error),

    /// A member of the JSON object is not what it should be.
    #[error("`{member}`")]
    Member {
        /// Its name, after those of the members around it.
        member: String,
        /// What is wrong with it, and where it is.
        source: serde_json::Error,
    },

    /// Nothing reads a member of the JSON object, so what it says would be ignored.
    #[error("`{member}` is not a parameter that this server knows")]
    Unread {
        /// Its name, after those of the members around it.
        member: String,
    },

    /// The message is well formed, but a value in it is not.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),

    /// The body is not compressed as it claims to be.
    #[error("not a zstd frame")]
    Zstd(#[source] std::io::Error),

    /// The body is larger than the limit.
    #[error("more than {limit_bytes} bytes after decompression")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
}

impl DecodeError {
    /// Wraps what is wrong with a JSON text, with the member that it is wrong with.
    pub(crate) fn json(text: &[u8], source: serde_json::Error) -> Self {
        let place = place::up_to(text, source.line(), source.column());
        match place::member(place) {
            Some(member) if source.is_data() => Self::Member { member, source },
            _ => Self::Json(source),
        }
    }

    /// Adds the member that is wrong, where it was not known.
    pub(crate) fn in_member(self, member: Option<String>) -> Self {
        match (self, member) {
            (Self::Json(source), Some(member)) => Self::Member { member, source },
            (other, _) => other,
        }
    }

    /// Returns the name of the member that is wrong, if one is.
    pub(crate) fn member(&self) -> Option<&str> {
        match self {
            Self::Member { member, .. } => Some(member),
            _ => None,
        }
    }
}

/// The body of a refused request: `{"detail": …}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// What was wrong: usually a text, a list for validation errors.
    pub detail: Value,
}

impl ErrorBody {
    /// Wraps a message.
    pub fn new(detail: impl Into<String>) -> Self {
        Self {
            detail: Value::String(detail.into()),
        }
    }

    /// Reads what a person should see of an error body, whatever its form.
    ///
    /// ```
    /// use tinkrs_wire::ErrorBody;
    ///
    /// assert_eq!(ErrorBody::message(br#"{"detail": "no such model"}"#), "no such model");
    /// assert_eq!(ErrorBody::message(b"Bad Gateway\n"), "Bad Gateway");
    /// assert_eq!(ErrorBody::message(br#"{"code": 7}"#), r#"{"code":7}"#);
    /// ```
    pub fn message(body: &[u8]) -> String {
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Object(mut members)) => match members.remove("detail") {
                Some(Value::String(detail)) => detail,
                Some(detail) => detail.to_string(),
                None => Value::Object(members).to_string(),
            },
            Ok(other) => other.to_string(),
            Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
        }
    }
}
