//! What handlers are given: checked credentials and decoded bodies.

use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::LengthLimitError;
use serde_json::Value;
use tinkrs_wire::op::forward_backward::Address;
use tinkrs_wire::{Body, compress, header as names};

use crate::error::Refusal;
use crate::unknown;

/// The largest body that is read, as sent.
const BODY_BYTES: usize = 64 << 20;
/// The largest body after decompression.
const PLAIN_BYTES: usize = 256 << 20;

/// A JSON body whose every member is known.
pub(crate) struct Decoded<T>(pub(crate) T);

impl<T: Body, S: Send + Sync> FromRequest<S> for Decoded<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        decode(&read(request.into_body()).await?).map(Self)
    }
}

/// A JSON body that has a place in a model's order, whatever else is wrong with it.
pub(crate) struct Numbered<T> {
    pub(crate) address: Address,
    pub(crate) request: Result<T, Refusal>,
}

impl<T: Body, S: Send + Sync> FromRequest<S> for Numbered<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let bytes = read(request.into_body()).await?;
        let request = decode(&bytes);
        match (Address::of_json(&bytes), request) {
            (Ok(address), request) => Ok(Self { address, request }),
            (Err(_), Err(refusal)) => Err(refusal),
            (Err(_), Ok(_)) => Err(Refusal::bad_request(
                "`model_id` is missing: this server implements the operation for a model that \
                 exists, not for one to be created",
            )),
        }
    }
}

fn decode<T: Body>(bytes: &[u8]) -> Result<T, Refusal> {
    let body = T::decode(bytes)?;
    let sent: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let known = serde_json::to_value(&body).unwrap_or_default();
    match unknown::member(&sent, &known) {
        None => Ok(body),
        Some(name) => Err(Refusal::unknown(&name)),
    }
}

/// A body as bytes, decompressed, and whether it is a protobuf message.
pub(crate) struct Raw {
    pub(crate) bytes: Bytes,
    pub(crate) is_message: bool,
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let encoding = text(&request, header::CONTENT_ENCODING);
        let content_type = text(&request, header::CONTENT_TYPE).unwrap_or_default();
        let is_message = content_type.starts_with(names::PROTOBUF);
        let bytes = read(request.into_body()).await?;
        let bytes = match encoding.as_deref() {
            None | Some("identity" | "") => bytes,
            Some("zstd") => compress::decompress(&bytes, PLAIN_BYTES)?,
            Some(other) => {
                return Err(Refusal::bad_request(format!(
                    "`Content-Encoding`: found {other}, expected zstd or none"
                )));
            }
        };
        Ok(Self { bytes, is_message })
    }
}

fn text(request: &Request, name: header::HeaderName) -> Option<String> {
    let value = request.headers().get(name)?;
    Some(value.to_str().unwrap_or("?").trim().to_ascii_lowercase())
}

async fn read(body: HttpBody) -> Result<Bytes, Refusal> {
    axum::body::to_bytes(body, BODY_BYTES)
        .await
        .map_err(|error| match std::error::Error::source(&error) {
            Some(source) if source.is::<LengthLimitError>() => {
                Refusal::too_large(format!("the body has more than {BODY_BYTES} bytes"))
            }
            _ => Refusal::bad_request("the body could not be read to its end"),
        })
}

/// Lets requests with a well-formed credential pass.
///
/// Any key is accepted: the server listens on this machine only, and has one owner.
pub(crate) async fn require_key(request: Request, next: Next) -> Response {
    let key = request.headers().get(names::API_KEY);
    let is_key = key.is_some_and(|key| {
        let key = key.as_bytes();
        let rest = key.strip_prefix(b"tml-").or(key.strip_prefix(b"eyJ"));
        rest.is_some_and(|rest| !rest.is_empty())
    });
    if is_key {
        return next.run(request).await;
    }
    let detail = match key {
        None => "`X-API-Key` is missing",
        Some(_) => "`X-API-Key` must start with `tml-` or `eyJ`",
    };
    Refusal::unauthorized(detail).into_response()
}
