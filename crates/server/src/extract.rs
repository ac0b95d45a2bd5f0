//! What handlers are given: checked credentials and decoded bodies.

use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::LengthLimitError;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tinkrs_wire::op::forward_backward::Address;
use tinkrs_wire::{Body, compress, header as names};

use crate::Server;
use crate::auth::{Denied, Owner};
use crate::body::read_json;
use crate::connections::TooSlow;
use crate::error::ApiError;
use crate::operations::OperationKind;

/// The largest body that is read, as sent.
const BODY_BYTES: usize = 64 << 20;
/// The largest body after decompression.
const PLAIN_BYTES: usize = 256 << 20;

/// The owner of the key that a request was sent with.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Owner);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ApiError::unauthorized("`X-API-Key` is missing"))
    }
}

/// A JSON body whose every member is known.
pub(crate) struct Decoded<T>(pub(crate) T);

impl<T: Body, S: Send + Sync> FromRequest<S> for Decoded<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        refuse_encoded(&request)?;
        read_json(&read(request.into_body()).await?).map(Self)
    }
}

/// The parameters in a request's query, every one of them known.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(parameters)) => Ok(Self(parameters)),
            Err(rejection) => Err(ApiError::bad_request(rejection.body_text())),
        }
    }
}

/// The ids in a request's path.
pub(crate) struct InPath<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(ids)) => Ok(Self(ids)),
            Err(rejection) => Err(ApiError::bad_request(rejection.body_text())),
        }
    }
}

/// A JSON body as it was sent.
pub(crate) struct Json(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        refuse_encoded(&request)?;
        read(request.into_body()).await.map(Self)
    }
}

impl Json {
    /// Returns the body's place in a model's order, whatever else is wrong with it. If it has none,
    /// the refusal tells what is wrong with a body of this kind.
    pub(crate) fn address(&self, kind: &OperationKind) -> Result<Address, ApiError> {
        Address::of_json(&self.0).map_err(|error| match (kind.read)(&self.0) {
            Err(refusal) => refusal,
            Ok(_) => error.into(),
        })
    }
}

/// A body as bytes, decompressed, and whether it is a protobuf message.
pub(crate) struct Raw {
    pub(crate) bytes: Bytes,
    pub(crate) is_message: bool,
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let encoding = text(&request, header::CONTENT_ENCODING);
        let content_type = text(&request, header::CONTENT_TYPE).unwrap_or_default();
        let is_message = content_type.starts_with(names::PROTOBUF);
        let bytes = read(request.into_body()).await?;
        let bytes = match encoding.as_deref() {
            None | Some("identity" | "") => bytes,
            Some("zstd") => compress::decompress(&bytes, PLAIN_BYTES)?,
            Some(other) => {
                return Err(ApiError::bad_request(format!(
                    "`Content-Encoding`: found {other}, expected zstd or none"
                )));
            }
        };
        Ok(Self { bytes, is_message })
    }
}

/// Refuses a compressed body where none is read, instead of taking it for broken JSON.
fn refuse_encoded(request: &Request) -> Result<(), ApiError> {
    match text(request, header::CONTENT_ENCODING).as_deref() {
        None | Some("identity" | "") => Ok(()),
        Some(other) => Err(ApiError::bad_request(format!(
            "`Content-Encoding`: found {other}, expected none"
        ))),
    }
}

fn text(request: &Request, name: header::HeaderName) -> Option<String> {
    let value = request.headers().get(name)?;
    Some(value.to_str().unwrap_or("?").trim().to_ascii_lowercase())
}

async fn read(body: HttpBody) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(body, BODY_BYTES)
        .await
        .map_err(|error| {
            if is_caused_by::<LengthLimitError>(&error) {
                ApiError::too_large(format!("the body has more than {BODY_BYTES} bytes"))
            } else if is_caused_by::<TooSlow>(&error) {
                ApiError::too_slow(
                    "the body did not come in time: the server waits for `body_timeout`",
                )
            } else {
                ApiError::bad_request("the body could not be read to its end")
            }
        })
}

fn is_caused_by<T: std::error::Error + 'static>(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<T>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Refuses a query where none is read, as its parameters would be ignored.
pub(crate) async fn refuse_query(request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    if query.is_empty() {
        return next.run(request).await;
    }
    let name = query.split(['=', '&']).next().unwrap_or_default();
    ApiError::unknown(name).into_response()
}

/// Lets requests with a credential pass, and notes whose they are.
pub(crate) async fn require_key(
    State(server): State<Server>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(key) = request.headers().get(names::API_KEY) else {
        return ApiError::unauthorized("`X-API-Key` is missing").into_response();
    };
    match server.auth().admit(key.as_bytes(), Timestamp::now()) {
        Ok(owner) => {
            request.extensions_mut().insert(Caller(owner));
            next.run(request).await
        }
        Err(denied) => ApiError::unauthorized(denied.to_string()).into_response(),
    }
}

/// Lets requests with an admin key pass.
pub(crate) async fn require_admin_key(
    State(server): State<Server>,
    request: Request,
    next: Next,
) -> Response {
    let key = request.headers().get(names::API_KEY);
    let key = key.map(|key| key.as_bytes()).unwrap_or_default();
    match server.auth().admit_admin(key) {
        Ok(()) => next.run(request).await,
        Err(denied @ Denied::NoAdmin) => ApiError::forbidden(denied.to_string()).into_response(),
        Err(denied) => ApiError::unauthorized(denied.to_string()).into_response(),
    }
}
