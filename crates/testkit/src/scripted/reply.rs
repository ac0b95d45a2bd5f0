//! What the server answers.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use tinkrs_wire::header;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

/// Answers with a status and an error body.
///
/// ```
/// use tinkrs_testkit::scripted::status;
///
/// let busy = status(503).header("retry-after", "1");
/// let edge_reset = status(400).body("");
/// ```
pub fn status(status: u16) -> Reply {
    refuse(status, &format!("scripted {status}"))
}

/// Answers with a status and a message.
pub fn refuse(status: u16, message: &str) -> Reply {
    let mut reply = Reply::json(&json!({ "detail": message }));
    reply.status = status;
    reply
}

/// Answers "not yet" with status 200, as some servers do.
pub fn try_again(queue_state: &str, reason: &str) -> Reply {
    Reply::json(&json!({
        "type": "try_again", "request_id": "any",
        "queue_state": queue_state, "queue_state_reason": reason,
    }))
}

/// Answers "not yet" with status 408, as most servers do.
pub fn not_yet(queue_state: &str, reason: &str) -> Reply {
    let mut reply = try_again(queue_state, reason);
    reply.status = 408;
    reply
}

/// Answers that the request was taken and failed.
pub fn failed(message: &str, category: &str) -> Reply {
    Reply::json(&json!({"error": message, "category": category}))
}

impl Reply {
    /// Answers with JSON.
    pub fn json(body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("answers have text keys");
        Self {
            status: 200,
            headers: vec![("content-type".to_owned(), header::JSON.to_owned())],
            body: body.into(),
        }
    }

    /// Answers with a protobuf message.
    pub fn message(body: impl Into<Bytes>) -> Self {
        let mut reply = Self::json(&Value::Null).body(body);
        reply.headers = vec![("content-type".to_owned(), header::PROTOBUF.to_owned())];
        reply
    }

    /// Adds a header, replacing one of the same name.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Replaces the body; an empty one is sent with `content-length: 0`.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }
}
