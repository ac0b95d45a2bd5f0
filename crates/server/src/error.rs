//! How a request is refused: one type, one way into a reply.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tinkrs_types::InvalidInput;
use tinkrs_wire::{DecodeError, ErrorBody};

use crate::store::WriteError;

/// A request that is not taken, and what its sender should know.
///
/// Operations that were taken and then fail are not refusals: their failure is a result.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    detail: String,
}

/// What the sender of a refused request was told, for those who write it in another form.
#[derive(Clone, Debug)]
pub(crate) struct Refused(pub(crate) String);

impl ApiError {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { status, detail }
    }

    /// The request cannot be taken as it is.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A parameter would have been ignored.
    pub(crate) fn unknown(name: &str) -> Self {
        let member = name.to_owned();
        DecodeError::Unread { member }.into()
    }

    /// The credential is missing or malformed.
    pub(crate) fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// There is no such thing.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// There was such a thing.
    pub(crate) fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, detail)
    }

    /// The body did not come in time; another try may be faster.
    pub(crate) fn too_slow(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    /// The body is too large.
    pub(crate) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// A queue is full; the same request may be taken a little later.
    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
    }

    /// The server cannot do this now, through no fault of the request.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// The owner may not do this.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// The request was meant for another server.
    pub(crate) fn misdirected(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, detail)
    }

    /// Things are already as the sender wants them, or stand in the way.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Whether it is the server that failed.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// Returns the status that it is answered with.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Says the same in other words.
    pub(crate) fn with_detail(self, detail: String) -> Self {
        Self { detail, ..self }
    }

    /// Returns what the sender is told.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        tracing::debug!(status = self.status.as_u16(), detail = %self.detail, "refused a request");
        let refused = Refused(self.detail.clone());
        let body = serde_json::to_vec(&ErrorBody::new(self.detail))
            .expect("a text is always written as JSON");
        let mut response = (
            self.status,
            [(header::CONTENT_TYPE, "application/json")],
            body,
        )
            .into_response();
        response.extensions_mut().insert(refused);
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            let second = HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, second);
        }
        if self.status == StatusCode::CONFLICT {
            // The official client repeats conflicts, and none of ours goes away by itself.
            let no = HeaderValue::from_static("false");
            response.headers_mut().insert("x-should-retry", no);
        }
        response
    }
}

impl From<InvalidInput> for ApiError {
    fn from(error: InvalidInput) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<rusqlite::Error> for ApiError {
    fn from(error: rusqlite::Error) -> Self {
        Self::unavailable(format!("could not read the database: {error}"))
    }
}

impl From<DecodeError> for ApiError {
    fn from(error: DecodeError) -> Self {
        let detail = chain(&error);
        match error {
            DecodeError::TooLarge { .. } => Self::too_large(detail),
            _ => Self::bad_request(detail),
        }
    }
}

/// Writes an error with all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
