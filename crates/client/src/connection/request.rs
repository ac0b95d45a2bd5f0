//! The HTTP form of a call.

use super::Connection;
use super::call::{Call, Payload};
use crate::Error;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::Full;
use std::time::Duration;
use tinkrs_wire::header;

/// The calls that are made most have no more headers, so that their map never grows.
const HEADERS: usize = 12;

impl Connection {
    /// Makes the request of a call, for a path of the server's.
    pub(super) async fn request(
        &self,
        call: &Call,
        path: &str,
        idempotency_key: Option<&HeaderValue>,
        retries: u32,
    ) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::new(Full::new(call.payload.body().clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = self.uri(path)?;
        let headers = request.headers_mut();
        headers.reserve(HEADERS);
        headers.extend(self.default_headers.iter().cloned());
        headers.insert(ACCEPT, HeaderValue::from_static(call.accept));
        headers.insert(HeaderName::from_static(header::RETRY_COUNT), retries.into());
        headers.insert(
            HeaderName::from_static(header::READ_TIMEOUT),
            seconds(self.timeout(call)),
        );
        if let Some(key) = idempotency_key {
            headers.insert(
                HeaderName::from_static(header::IDEMPOTENCY_KEY),
                key.clone(),
            );
        }
        headers.insert(
            HeaderName::from_static(header::API_KEY),
            self.credential.header().await?,
        );
        headers.extend(call.headers.iter().cloned());
        let content_type = match &call.payload {
            Payload::None if call.method == Method::GET => return Ok(request),
            Payload::None | Payload::Json(_) => header::JSON,
            Payload::Archive(_) => header::TAR,
            Payload::Message { zstd, .. } => {
                if *zstd {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
                }
                header::PROTOBUF
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        Ok(request)
    }

    /// Returns a path as a request carries it.
    fn uri(&self, path: &str) -> Result<Uri, Error> {
        path.parse().or_else(|_| {
            // It has characters that are only fit for a URL once they are escaped.
            let url = self.url(path)?;
            let query = url.query().map(|query| format!("?{query}"));
            let path = format!("{}{}", url.path(), query.unwrap_or_default());
            path.parse().map_err(|_| not_a_url(&path))
        })
    }

    /// Returns the URL of a path.
    pub(super) fn url(&self, path: &str) -> Result<reqwest::Url, Error> {
        let origin = self.base_url.trim_end_matches(&self.base_path);
        let url = format!("{origin}{path}");
        url.parse().map_err(|_| not_a_url(&url))
    }
}

fn not_a_url(text: &str) -> Error {
    Error::Setup {
        message: format!("`{text}` is not a URL"),
    }
}

fn seconds(time: Duration) -> HeaderValue {
    if time.subsec_nanos() == 0 {
        return time.as_secs().into();
    }
    let text = time.as_secs_f64().to_string();
    HeaderValue::try_from(text).expect("a number is digits and a point")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_written_as_short_as_they_can_be() {
        assert_eq!(seconds(Duration::from_secs(60)), "60");
        assert_eq!(seconds(Duration::from_millis(2_500)), "2.5");
    }
}
