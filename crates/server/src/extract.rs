//! What handlers are given: checked credentials and decoded bodies.

use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tinkrs_wire::op::forward_backward::Address;
use tinkrs_wire::{Body, header as names};

use crate::Server;
use crate::auth::{Denied, Owner, Pass};
use crate::body::read_json;
use crate::connections::TooSlow;
use crate::error::ApiError;
use crate::intake::BODY_BYTES;
use crate::operations::OperationKind;
use crate::studio::visitor;
use crate::waiting::Room;

/// The largest body of a request that carries no data: all but passes, samples and uploads. It is decoded where it
/// is read.
pub(crate) const REQUEST_BYTES: usize = 128 << 10;

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
    pub(crate) fn address(
        &self,
        kind: &OperationKind,
        room: Room<'_>,
    ) -> Result<Address, ApiError> {
        Address::of_json(&self.0).map_err(|error| match (kind.read)(&self.0, room) {
            Err(refusal) => refusal,
            Ok(_) => error.into(),
        })
    }
}

/// Refuses a compressed body where none is read, instead of taking it for broken JSON.
fn refuse_encoded(request: &Request) -> Result<(), ApiError> {
    match header_text(request, header::CONTENT_ENCODING).as_deref() {
        None | Some("identity" | "") => Ok(()),
        Some(other) => Err(ApiError::bad_request(format!(
            "`Content-Encoding`: found {other}, expected none"
        ))),
    }
}

/// Returns a header in lower case.
pub(crate) fn header_text(request: &Request, name: header::HeaderName) -> Option<String> {
    let value = request.headers().get(name)?;
    Some(value.to_str().unwrap_or("?").trim().to_ascii_lowercase())
}

/// Reads a body. One that is too large is read to its end all the same, as far as that is bearable: a client that is
/// still sending would see the connection end before any status.
async fn read(mut body: HttpBody) -> Result<Bytes, ApiError> {
    let (mut bytes, mut size) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreadable(&error))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        size += data.len();
        if size <= REQUEST_BYTES {
            bytes.extend_from_slice(&data);
        } else if size > BODY_BYTES {
            break;
        }
    }
    if size > REQUEST_BYTES {
        return Err(too_large(REQUEST_BYTES));
    }
    Ok(bytes.into())
}

/// Refuses a body that is larger than one of its kind may be.
pub(crate) fn too_large(limit: usize) -> ApiError {
    ApiError::too_large(format!("the body has more than {limit} bytes"))
}

/// Tells what kept a body from being read.
pub(crate) fn unreadable(error: &axum::Error) -> ApiError {
    if is_caused_by::<TooSlow>(error) {
        ApiError::too_slow("the body did not come in time: the server waits for `body_timeout`")
    } else {
        ApiError::bad_request("the body could not be read to its end")
    }
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
    let admitted = match credential(request.headers()) {
        Some(key) if !key.is_empty() => server
            .auth()
            .admit(key, Timestamp::now())
            .map(Pass::of_key)
            .map_err(|denied| ApiError::unauthorized(denied.to_string())),
        // A browser that logged in has a cookie instead.
        empty => {
            let (method, uri, headers) = (request.method(), request.uri(), request.headers());
            match visitor::admit_cookies(&server, method, uri, headers) {
                Ok(Some(pass)) => Ok(pass),
                Ok(None) if empty.is_some() => {
                    Err(ApiError::unauthorized(Denied::Malformed.to_string()))
                }
                Ok(None) => Err(ApiError::unauthorized(
                    "`X-API-Key` is missing, and so is `Authorization: Bearer`",
                )),
                Err(refusal) => Err(refusal),
            }
        }
    };
    match admitted {
        Ok(pass) => {
            let is_browser = pass.signed.is_some();
            request.extensions_mut().insert(Caller(pass.owner));
            request.extensions_mut().insert(pass);
            let mut response = next.run(request).await;
            // Whoever logs out leaves nothing in the browser, nor in a cache on the way to it.
            if is_browser {
                let kept = response.headers_mut().entry(header::CACHE_CONTROL);
                kept.or_insert(HeaderValue::from_static("no-store"));
            }
            response
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Returns the key that a request was sent with: in `X-API-Key`, or as `Authorization: Bearer`, which is how clients of
/// other APIs send it.
fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let key = headers.get(names::API_KEY).map(HeaderValue::as_bytes);
    let bearer = || {
        let value = headers.get(names::AUTHORIZATION)?.as_bytes();
        let (scheme, key) = value.split_at_checked(b"Bearer ".len())?;
        scheme
            .eq_ignore_ascii_case(b"Bearer ")
            .then(|| key.trim_ascii())
    };
    key.filter(|key| !key.is_empty()).or_else(bearer).or(key)
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
