//! `POST /retrieve_future`: fetches a result, or news of it.
//!
//! The server holds the call for a while, then answers in one of five ways, which [`Reply`]
//! tells apart. Results of samples and passes are messages for clients that accept them; news
//! and failures are always JSON, with status 200.

use crate::json::body;
use crate::{DecodeError, header};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tinkrs_types::RequestId;
use tinkrs_types::protocol::{FailedRequest, QueueStatus};

/// Asks for a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetrieveFutureRequest {
    /// Which request's.
    pub request_id: RequestId,
    /// Takes the size of a large result instead of the result.
    #[serde(default)]
    pub allow_metadata_only: bool,
}

body!(RetrieveFutureRequest);

/// What a server answers, if it does not answer with an error status.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The result as a protobuf message.
    Message(Bytes),
    /// The result as JSON.
    Json(Bytes),
    /// Not yet.
    TryAgain(QueueStatus),
    /// It is done, but large: ask again without `allow_metadata_only`.
    MetadataOnly {
        /// How large.
        size_bytes: u64,
    },
    /// The request failed.
    Failed(FailedRequest),
}

impl Reply {
    /// Reads the body of a successful answer.
    ///
    /// # Errors
    /// If it is neither a message nor a JSON object.
    pub fn decode(content_type: &str, body: Bytes) -> Result<Self, DecodeError> {
        if content_type.contains(header::PROTOBUF) {
            return Ok(Self::Message(body));
        }
        let mut members: Map<String, Value> = serde_json::from_slice(&body)?;
        if members.get("type").is_some_and(|kind| kind == "try_again") {
            return Ok(Self::TryAgain(serde_json::from_value(members.into())?));
        }
        if members
            .get("status")
            .is_some_and(|status| status == "complete_metadata")
        {
            let size_bytes = members
                .get("response_payload_size")
                .and_then(Value::as_u64)
                .unwrap_or(0);
            return Ok(Self::MetadataOnly { size_bytes });
        }
        let Some(error) = members.remove("error") else {
            return Ok(Self::Json(body));
        };
        let message = match error {
            Value::String(message) => message,
            other => other.to_string(),
        };
        members.insert("error".to_owned(), message.into());
        Ok(Self::Failed(serde_json::from_value(members.into())?))
    }
}

/// There is no result yet.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct TryAgain<'a> {
    /// `try_again`.
    #[serde(rename = "type")]
    tag: &'static str,
    /// Which request.
    request_id: &'a RequestId,
    #[serde(flatten)]
    status: &'a QueueStatus,
}

/// There is a result, but it is large.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct MetadataOnly {
    /// `complete_metadata`.
    status: &'static str,
    /// The size of the result in bytes.
    response_payload_size: u64,
}

/// Reads the queue state in the body of a status 408, if there is one.
pub fn queue_status(body: &[u8]) -> Option<QueueStatus> {
    let members: Map<String, Value> = serde_json::from_slice(body).ok()?;
    members.get("queue_state")?;
    serde_json::from_value(members.into()).ok()
}

/// Writes "not yet": the body of a status 408, or of a 200 for clients that want one.
pub fn encode_try_again(request_id: &RequestId, status: &QueueStatus) -> Value {
    json!(TryAgain {
        tag: "try_again",
        request_id,
        status,
    })
}

/// Writes the size of a large result.
pub fn encode_metadata(size_bytes: u64) -> Value {
    json!(MetadataOnly {
        status: "complete_metadata",
        response_payload_size: size_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinkrs_types::service::{ErrorCategory, QueueState};

    #[test]
    fn each_form_of_an_answer_is_told_apart() {
        let json = |body: &str| {
            Reply::decode("application/json", Bytes::copy_from_slice(body.as_bytes())).unwrap()
        };
        assert_eq!(
            Reply::decode("application/x-protobuf; v=1", Bytes::from_static(b"\x01")).unwrap(),
            Reply::Message(Bytes::from_static(b"\x01"))
        );
        let paused = r#"{"type": "try_again", "request_id": "r", "queue_state": "paused_capacity", "queue_state_reason": "busy"}"#;
        let status = QueueStatus {
            state: QueueState::PausedCapacity,
            reason: Some("busy".to_owned()),
        };
        assert_eq!(json(paused), Reply::TryAgain(status.clone()));
        assert_eq!(
            encode_try_again(&"r".into(), &status),
            serde_json::from_str::<Value>(paused).unwrap()
        );
        assert_eq!(
            json(&encode_metadata(7).to_string()),
            Reply::MetadataOnly { size_bytes: 7 }
        );
        assert_eq!(
            json(r#"{"status": "complete_metadata", "response_payload_size": null}"#),
            Reply::MetadataOnly { size_bytes: 0 }
        );
        assert_eq!(
            json(r#"{"error": "bad token", "category": "user"}"#),
            Reply::Failed(FailedRequest {
                error: "bad token".to_owned(),
                category: ErrorCategory::User
            })
        );
        assert!(matches!(
            json(r#"{"error": {"code": 1}}"#),
            Reply::Failed(_)
        ));
        assert!(matches!(
            json(r#"{"model_id": "m", "type": "create_model"}"#),
            Reply::Json(_)
        ));
        assert!(Reply::decode("application/json", Bytes::from_static(b"[]")).is_err());
    }

    #[test]
    fn news_of_the_wrong_type_is_still_news() {
        let odd = br#"{"type": "try_again", "queue_state": 7, "queue_state_reason": ["x"]}"#;
        assert_eq!(
            Reply::decode("application/json", Bytes::from_static(odd)).unwrap(),
            Reply::TryAgain(QueueStatus::default())
        );
        let failed = br#"{"error": "bad token", "category": {"code": 1}}"#;
        assert_eq!(
            Reply::decode("application/json", Bytes::from_static(failed)).unwrap(),
            Reply::Failed(FailedRequest {
                error: "bad token".to_owned(),
                category: ErrorCategory::Unknown
            })
        );
    }

    #[test]
    fn a_408_tells_its_queue_state_if_it_has_one() {
        assert_eq!(
            queue_status(br#"{"queue_state": "active"}"#).unwrap().state,
            QueueState::Active
        );
        for body in [&b"timeout"[..], b"{}", b"[]", b""] {
            assert_eq!(queue_status(body), None);
        }
    }
}
