//! Servers that take passes as JSON alone.
//!
//! Clients from 0.25 on send passes as messages. Nothing that a server tells beforehand says whether it
//! reads them, so the first pass finds out: if the server does not even understand the body, the same
//! request goes out as clients to 0.24 send it, and what it takes is remembered for the connection.
//!
//! [`objection`] is strict, since a server of today may have begun to work on what it then fails to answer:
//! the other form counts as another request.

use super::call::{Call, Payload};
use super::fault::Fault;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use std::sync::atomic::{AtomicU8, Ordering};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tinkrs_wire::{compress, route};

/// More than any chunk of a pass.
const MAX_PASS_BYTES: usize = 1 << 30;

// 0 is what is not known yet.
const MESSAGES: u8 = 1;
const JSON: u8 = 2;

/// In which form a server takes passes, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct PassForm(AtomicU8);

impl PassForm {
    /// Whether the server took a pass as JSON after it had not understood a message.
    pub(crate) fn is_json(&self) -> bool {
        self.0.load(Ordering::Relaxed) == JSON
    }

    /// Takes note of an answer to a call that carries a pass.
    pub(super) fn taken(&self, call: &Call) {
        let form = match call.payload {
            Payload::Message { .. } => MESSAGES,
            Payload::Json(_) => JSON,
            Payload::None | Payload::Archive(_) => return,
        };
        self.0.store(form, Ordering::Relaxed);
    }

    /// Returns the call in its older form, if this answer calls for it.
    pub(super) fn older(&self, call: &Call, fault: &Fault) -> Option<(Objection, Call)> {
        let Payload::Message { body, zstd } = &call.payload else {
            return None;
        };
        if !call.is_pass || self.0.load(Ordering::Relaxed) == MESSAGES {
            return None;
        }
        let objection = objection(fault)?;
        let body = match zstd {
            true => compress::decompress(body, MAX_PASS_BYTES).ok()?,
            false => body.clone(),
        };
        let pass = ForwardBackwardRequest::decode(body).ok()?;
        let path = path(pass.forward_only);
        let body = pass.encode_json().ok()?;
        tracing::debug!(operation = call.operation, "the server takes JSON alone");
        let mut older = call.clone();
        older.path = path.into();
        older.payload = Payload::Json(body.into());
        Some((objection, older))
    }
}

/// Where a pass goes as JSON.
pub(crate) fn path(forward_only: bool) -> &'static str {
    match forward_only {
        true => route::FORWARD,
        false => route::FORWARD_BACKWARD,
    }
}

/// How a server said that it does not understand a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Objection {
    /// It refused it: the other form is what it has to say about the request.
    Refused,
    /// It broke down over it, perhaps for another reason.
    BrokeDown,
}

/// Says whether a server did not understand a message as such.
fn objection(fault: &Fault) -> Option<Objection> {
    let Fault::Status {
        status,
        headers,
        body,
    } = fault
    else {
        return None;
    };
    match *status {
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Some(Objection::Refused),
        // A fault of the body as a whole, and not of a member, is at the place `["body"]`.
        StatusCode::UNPROCESSABLE_ENTITY => {
            let answer: Value = serde_json::from_slice(body).ok()?;
            let whole = serde_json::json!(["body"]);
            let refused = answer["detail"].as_array()?.iter();
            let mut places = refused.map(|fault| &fault["loc"]);
            places
                .any(|place| *place == whole)
                .then_some(Objection::Refused)
        }
        // The same servers fail to quote a body that is not text, and then say only this.
        StatusCode::INTERNAL_SERVER_ERROR => {
            let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
            (kind.starts_with("text/plain") && &**body == b"Internal Server Error")
                .then_some(Objection::BrokeDown)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    fn answer(status: u16, kind: &'static str, body: &'static str) -> Fault {
        let kind = http::HeaderValue::from_static(kind);
        Fault::Status {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::from_iter([(CONTENT_TYPE, kind)]),
            body: body.into(),
        }
    }

    #[test]
    fn only_a_body_that_was_not_understood_at_all_is_sent_in_another_form() {
        let json = "application/json";
        let whole = r#"{"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"…"}]}"#;
        let member = r#"{"detail":[{"type":"missing","loc":["body","model_id"],"msg":"…"}]}"#;
        let text = "text/plain; charset=utf-8";
        let cases = [
            (answer(415, json, "{}"), Some(Objection::Refused)),
            (answer(422, json, whole), Some(Objection::Refused)),
            (answer(422, json, member), None),
            (answer(422, json, r#"{"detail":"no"}"#), None),
            (
                answer(500, text, "Internal Server Error"),
                Some(Objection::BrokeDown),
            ),
            (answer(500, text, "upstream is gone"), None),
            (
                answer(500, json, r#"{"detail":"Internal Server Error"}"#),
                None,
            ),
            (answer(503, text, "Internal Server Error"), None),
            (answer(400, json, whole), None),
            (Fault::Timeout, None),
        ];
        for (fault, expected) in cases {
            assert_eq!(objection(&fault), expected, "{fault:?}");
        }
    }
}
