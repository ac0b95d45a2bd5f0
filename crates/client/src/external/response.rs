use super::HttpError;
use crate::connection::errors::AttemptError;
use crate::connection::transport::{self, ReadLimits};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The longest response that is read as a whole.
const MAX_BYTES: usize = 32 << 20;

/// A response, whatever its status. Dropping it closes the connection.
#[derive(Debug)]
pub struct HttpResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    silence: Duration,
}

impl HttpResponse {
    pub(super) fn new(response: Response<Incoming>, silence: Duration) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            body,
            silence,
        }
    }

    /// Returns the status.
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// Returns the usual words for the status.
    pub fn reason(&self) -> Option<&'static str> {
        self.status.canonical_reason()
    }

    /// Returns whether the status is one of success.
    pub fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Returns a header, if it is there and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn status_code(&self) -> StatusCode {
        self.status
    }

    /// Returns the body, to be read under limits of the caller's.
    pub(crate) fn into_body(self) -> Incoming {
        self.body
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Waits for the next part of the body; `None` is its end.
    ///
    /// # Errors
    /// If the connection breaks, or nothing arrives for too long.
    pub async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + Send + use<>>, HttpError> {
        self.bytes_chunk().await
    }

    pub(crate) async fn bytes_chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let frame = tokio::time::timeout(self.silence, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| HttpError::Timeout(self.silence))? else {
                return Ok(None);
            };
            // Trailers, which nothing here needs, are not data.
            if let Ok(data) = frame.map_err(HttpError::connection)?.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Reads the whole body, up to a limit.
    pub(crate) async fn read(self, max_bytes: usize) -> Result<Bytes, HttpError> {
        let silence = self.silence;
        let limits = ReadLimits { silence, max_bytes };
        transport::read(self.body, limits)
            .await
            .map_err(|error| match error {
                AttemptError::TooLong { limit_bytes } => HttpError::TooLarge { limit_bytes },
                AttemptError::Connection(error) => HttpError::Connection(error),
                _ => HttpError::Timeout(silence),
            })
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// If it cannot be read to its end, or is not the JSON that was expected.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, HttpError> {
        let body = self.read(MAX_BYTES).await?;
        serde_json::from_slice(&body).map_err(|error| HttpError::Parse(error.into()))
    }

    /// Reads the body as text.
    ///
    /// # Errors
    /// If it cannot be read to its end, or is not UTF-8.
    pub async fn text(self) -> Result<String, HttpError> {
        let body = self.read(MAX_BYTES).await?;
        String::from_utf8(body.into()).map_err(|error| HttpError::Parse(error.into()))
    }
}
