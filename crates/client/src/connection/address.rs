//! Where the server is, and what every request to it carries.

use super::call::{Call, Payload};
use super::transport::ACCEPTED_ENCODINGS;
use crate::Error;
use crate::external::basic_auth;
use crate::options::Options;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, USER_AGENT,
};
use http::{Method, Request, Uri};
use http_body_util::Full;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;
use tinkrs_wire::{SDK_VERSION, header};
use url::Url;

/// The calls that are made most have no more headers, so that their map never grows.
const HEADERS: usize = 12;

/// The server's address and the headers of all requests.
#[derive(Debug)]
pub(crate) struct Address {
    /// The URL that all paths come after, without a slash at the end.
    pub(crate) base_url: String,
    /// The path in it.
    base_path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The headers among them that the user has set, for other processes that join the session.
    pub(crate) header_overrides: BTreeMap<String, String>,
    /// The longest that the user wants to wait for a response; `None` means as long as a call says.
    pub(super) max_timeout: Option<Duration>,
    /// The longest that the user wants a call to be retried; `None` means as long as its policy says.
    pub(super) max_retry_time: Option<Duration>,
}

impl Address {
    pub(super) fn new(options: &Options, base_url: &Url) -> Result<Self, Error> {
        Ok(Self {
            base_url: base_url.as_str().trim_end_matches('/').to_owned(),
            base_path: base_url.path().trim_end_matches('/').to_owned(),
            headers: default_headers(options, base_url)?,
            header_overrides: options.headers.clone(),
            max_timeout: options.http_timeout,
            max_retry_time: options.max_retry_time,
        })
    }

    /// Returns the path of an endpoint on this server.
    pub(super) fn path<'a>(&self, endpoint: &'a str) -> Cow<'a, str> {
        match &*self.base_path {
            "" => Cow::Borrowed(endpoint),
            base_path => Cow::Owned(format!("{base_path}{endpoint}")),
        }
    }

    /// Makes the request of a call, all but its credential.
    pub(super) fn request(
        &self,
        call: &Call,
        path: &str,
        timeout: Duration,
        retries: u32,
    ) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::new(Full::new(call.payload.body().clone()));
        *request.method_mut() = call.method().clone();
        *request.uri_mut() = self.uri(path)?;
        let headers = request.headers_mut();
        headers.reserve(HEADERS);
        headers.extend(self.headers.iter().cloned());
        headers.insert(ACCEPT, HeaderValue::from_static(call.accept));
        headers.insert(HeaderName::from_static(header::RETRY_COUNT), retries.into());
        headers.insert(
            HeaderName::from_static(header::READ_TIMEOUT),
            seconds(timeout),
        );
        headers.extend(call.headers.iter().cloned());
        let content_type = match &call.payload {
            Payload::None if *call.method() == Method::GET => return Ok(request),
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
            // Parsing it as a URL escapes the characters that are not allowed as they are.
            let url = self.url(path)?;
            let query = url.query().map(|query| format!("?{query}"));
            let path = format!("{}{}", url.path(), query.unwrap_or_default());
            path.parse().map_err(|_| not_a_url(&path))
        })
    }

    /// Returns the URL of a path.
    pub(super) fn url(&self, path: &str) -> Result<Url, Error> {
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

fn default_headers(
    options: &Options,
    base_url: &Url,
) -> Result<Vec<(HeaderName, HeaderValue)>, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(
        ACCEPT_ENCODING,
        HeaderValue::from_static(ACCEPTED_ENCODINGS),
    );
    if !base_url.username().is_empty() {
        headers.insert(AUTHORIZATION, basic_auth(base_url));
    }
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("tinkrs/", env!("CARGO_PKG_VERSION"))),
    );
    headers.insert(
        HeaderName::from_static(header::PACKAGE_VERSION),
        HeaderValue::from_static(SDK_VERSION),
    );
    for (name, value) in options.extra_headers() {
        let refused = |what: &str| Error::Setup {
            message: format!("header `{name}`: not a valid {what}"),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| refused("value"))?;
        value.set_sensitive(true);
        headers.insert(
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("name"))?,
            value,
        );
    }
    let single = |(name, value): (Option<HeaderName>, _)| Some((name?, value));
    Ok(headers.into_iter().filter_map(single).collect())
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
