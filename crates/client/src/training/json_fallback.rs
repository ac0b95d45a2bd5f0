//! Servers that take `forward_backward` as JSON alone.
//!
//! Clients from 0.25 on send it as protobuf. Nothing that a server says beforehand tells whether it
//! reads that, so the first request finds out: if the server does not even understand the body, the same
//! request goes out as clients to 0.24 send it, and what works is remembered for the session.
//!
//! [`not_understood`] is strict, since a current server may have begun to work on what it then fails to
//! answer: the other format counts as another request.

use super::client::Inner;
use super::sequencer::Submitted;
use crate::Error;
use crate::connection::call::{Call, Payload};
use crate::connection::errors::{AttemptError, SubmitError};
use crate::connection::policy::Policy;
use crate::connection::transport::Traffic;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use std::sync::atomic::{AtomicU8, Ordering};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tinkrs_wire::{compress, endpoint};

/// How often a connection may break while JSON is tried after a status 500.
const TRIES: u32 = 4;

/// The format in which a server takes `forward_backward`, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct BodyFormat(AtomicU8);

// 0 is what is not known yet.
const PROTOBUF: u8 = 1;
const JSON: u8 = 2;

impl BodyFormat {
    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, format: u8) {
        self.0.store(format, Ordering::Relaxed);
    }
}

/// Submits a request in the format that the server takes.
pub(super) async fn submit(
    inner: &Inner,
    operation: &'static str,
    request: ForwardBackwardRequest,
) -> Result<Submitted, SubmitError> {
    let zstd = inner.session.connection.server.config.proto_compress_fwdbwd;
    let format = &inner.session.forward_backward_format;
    match format.get() {
        PROTOBUF => {
            inner
                .submit(&protobuf_call(operation, request, zstd)?)
                .await
        }
        JSON => inner.submit(&json_call(operation, request)?).await,
        _ => {
            // Encoding takes the data out of the request, so it is copied while the format is unknown.
            let call = protobuf_call(operation, request.clone(), zstd)?;
            find_format(inner, call, request).await
        }
    }
}

/// Submits a request as protobuf, and as JSON if the server does not understand that.
async fn find_format(
    inner: &Inner,
    mut call: Call,
    request: ForwardBackwardRequest,
) -> Result<Submitted, SubmitError> {
    let format = &inner.session.forward_backward_format;
    call.stop_if = Some(not_understood);
    let failed = match inner.submit(&call).await {
        Err(failed) if failed.stopped => failed,
        submitted => {
            if submitted.is_ok() {
                format.set(PROTOBUF);
            }
            return submitted;
        }
    };
    call.stop_if = None;
    let operation = call.operation;
    tracing::debug!(operation, "the server does not read protobuf: trying JSON");
    let Ok(json) = json_call(operation, request) else {
        return inner.submit(&call).await;
    };
    let submitted = if failed.error.status() == Some(500) {
        // It may be a failure of another kind: then JSON fails as well, and protobuf is right.
        match try_json(inner, json.policy(Policy::ONCE)).await {
            Err(_) => return inner.submit(&call).await,
            submitted => submitted,
        }
    } else {
        inner.submit(&json).await
    };
    if submitted.is_ok() {
        format.set(JSON);
    }
    submitted
}

/// Tries a request as JSON.
///
/// Servers that fail over a body close the connection after their response, so that this try may
/// run into the closed connection. That says nothing about the format.
async fn try_json(inner: &Inner, call: Call) -> Result<Submitted, SubmitError> {
    for _ in 1..TRIES {
        match inner.submit(&call).await {
            Err(failed) if matches!(failed.error, Error::Unreachable { .. }) => {}
            submitted => return submitted,
        }
    }
    inner.submit(&call).await
}

fn protobuf_call(
    operation: &'static str,
    request: ForwardBackwardRequest,
    zstd: bool,
) -> Result<Call, SubmitError> {
    let mut body = request.encode().map_err(SubmitError::unsent)?;
    if zstd {
        body = compress::compress(&body);
    }
    let body = body.into();
    let mut call = Call::new(&endpoint::FORWARD_BACKWARD).named(operation);
    call.payload = Payload::Message { body, zstd };
    call.traffic = Traffic::Training;
    Ok(call)
}

fn json_call(
    operation: &'static str,
    request: ForwardBackwardRequest,
) -> Result<Call, SubmitError> {
    let endpoint = if request.forward_only {
        &endpoint::FORWARD
    } else {
        &endpoint::FORWARD_BACKWARD
    };
    let body = request.encode_json().map_err(SubmitError::unsent)?;
    let mut call = Call::new(endpoint).named(operation);
    call.payload = Payload::Json(body.into());
    call.traffic = Traffic::Training;
    Ok(call)
}

/// Says whether a server did not understand a protobuf body as such.
fn not_understood(failed: &AttemptError) -> bool {
    let AttemptError::Status {
        status,
        headers,
        body,
    } = failed
    else {
        return false;
    };
    match *status {
        StatusCode::UNSUPPORTED_MEDIA_TYPE => true,
        // A fault of the body as a whole, and not of a member, is at the place `["body"]`.
        StatusCode::UNPROCESSABLE_ENTITY => {
            let Ok(refusal) = serde_json::from_slice::<Value>(body) else {
                return false;
            };
            let whole = serde_json::json!(["body"]);
            let faults = refusal["detail"].as_array();
            faults.is_some_and(|faults| faults.iter().any(|fault| fault["loc"] == whole))
        }
        // The same servers fail to quote a body that is not text, and then say only this.
        StatusCode::INTERNAL_SERVER_ERROR => {
            let kind = headers
                .get(CONTENT_TYPE)
                .and_then(|kind| kind.to_str().ok());
            kind.is_some_and(|kind| kind.starts_with("text/plain"))
                && &**body == b"Internal Server Error"
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    fn response(status: u16, kind: &'static str, body: &'static str) -> AttemptError {
        let kind = http::HeaderValue::from_static(kind);
        AttemptError::Status {
            status: StatusCode::from_u16(status).unwrap(),
            headers: Box::new(HeaderMap::from_iter([(CONTENT_TYPE, kind)])),
            body: body.into(),
        }
    }

    #[test]
    fn only_a_body_that_was_not_understood_at_all_is_sent_in_another_format() {
        let json = "application/json";
        let whole = r#"{"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"…"}]}"#;
        let member = r#"{"detail":[{"type":"missing","loc":["body","model_id"],"msg":"…"}]}"#;
        let text = "text/plain; charset=utf-8";
        let cases = [
            (response(415, json, "{}"), true),
            (response(422, json, whole), true),
            (response(422, json, member), false),
            (response(422, json, r#"{"detail":"no"}"#), false),
            (response(500, text, "Internal Server Error"), true),
            (response(500, text, "upstream is gone"), false),
            (
                response(500, json, r#"{"detail":"Internal Server Error"}"#),
                false,
            ),
            (response(503, text, "Internal Server Error"), false),
            (response(400, json, whole), false),
            (AttemptError::Timeout, false),
        ];
        for (failed, expected) in cases {
            assert_eq!(not_understood(&failed), expected, "{failed:?}");
        }
    }
}
