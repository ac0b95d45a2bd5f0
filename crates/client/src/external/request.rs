use super::upload::Upload;
use super::{HttpClient, HttpError, HttpResponse};
use crate::auth::Secret;
use crate::connection::transport::MAX_REDIRECTS;
use crate::server_url;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use http::{Method, StatusCode};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use url::Url;

const NAME: &str = concat!("tinkrs/", env!("CARGO_PKG_VERSION"));

/// A request that has been described but not sent.
#[must_use = "nothing is sent until `send` is called"]
pub struct HttpRequest {
    client: HttpClient,
    method: Method,
    url: Url,
    headers: HeaderMap,
    upload: Upload,
    /// What is wrong with the description, which `send` reports.
    wrong: Option<HttpError>,
}

impl fmt::Debug for HttpRequest {
    /// Leaves out the URL, which may be signed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRequest")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl HttpRequest {
    pub(super) fn new(client: HttpClient, method: Method, url: &str) -> Self {
        let parsed = Url::parse(url).ok().filter(server_url::is_http);
        let wrong = parsed.is_none().then_some(HttpError::InvalidUrl);
        let url = parsed.unwrap_or_else(|| Url::parse("http://invalid").expect("it is a URL"));
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
        if !url.username().is_empty() {
            headers.insert(AUTHORIZATION, basic_auth(&url));
        }
        Self {
            client,
            method,
            url,
            headers,
            upload: Upload::Bytes(Vec::new().into()),
            wrong,
        }
    }

    /// Sets a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
        match (parsed, HeaderValue::from_str(value)) {
            (Some(name), Ok(value)) => drop(self.headers.insert(name, value)),
            _ => self.wrong = Some(invalid_header(name)),
        }
        self
    }

    /// Sets a header to a secret, which is never logged and not sent to hosts that the request is
    /// redirected to.
    pub fn secret_header(self, name: &str, secret: &Secret) -> Self {
        self.sensitive(name, secret.expose())
    }

    /// Authorizes the request with a token, which is treated like a
    /// [`secret_header`](Self::secret_header).
    pub fn bearer_token(self, token: &Secret) -> Self {
        self.sensitive(
            AUTHORIZATION.as_str(),
            &format!("Bearer {}", token.expose()),
        )
    }

    fn sensitive(mut self, name: &str, value: &str) -> Self {
        let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
        match (parsed, HeaderValue::from_str(value)) {
            (Some(name), Ok(mut value)) => {
                value.set_sensitive(true);
                self.headers.insert(name, value);
            }
            _ => self.wrong = Some(invalid_header(name)),
        }
        self
    }

    /// Sends bytes.
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.upload = Upload::Bytes(bytes.into().into());
        self
    }

    /// Sends a value as JSON.
    pub fn json(mut self, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.upload = Upload::Bytes(bytes.into()),
            Err(error) => self.wrong = Some(HttpError::Parse(error.into())),
        }
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self
    }

    /// Sends a file, which is read while it is sent.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.upload = Upload::File(path.into());
        self
    }

    /// Sends the request and waits for the head of the response, whatever its status.
    ///
    /// # Errors
    /// If the request cannot be formed, or there is no response.
    pub async fn send(self) -> Result<HttpResponse, HttpError> {
        let Self {
            client,
            method,
            mut url,
            mut headers,
            upload,
            wrong,
        } = self;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        for _ in 0..=MAX_REDIRECTS {
            let exchange = client.exchange(&method, &url, headers.clone(), &upload);
            let response = Box::pin(exchange).await?;
            let Some(next) = redirect(&method, &url, response.status_code(), response.headers())
            else {
                return Ok(response);
            };
            if !server_url::is_http(&next) {
                return Err(HttpError::InvalidUrl);
            }
            if next.origin() != url.origin() {
                headers = without_secrets(headers);
            }
            url = next;
        }
        Err(HttpError::TooManyRedirects)
    }
}

fn invalid_header(name: &str) -> HttpError {
    HttpError::InvalidHeader {
        name: name.to_owned(),
    }
}

/// Returns where a response redirects to, if it does and the same request can be made there.
fn redirect(method: &Method, url: &Url, status: StatusCode, headers: &HeaderMap) -> Option<Url> {
    let follow = match status.as_u16() {
        301..=303 => *method == Method::GET,
        307 | 308 => true,
        _ => false,
    };
    let location = headers.get(LOCATION).filter(|_| follow)?;
    url.join(location.to_str().ok()?).ok()
}

fn without_secrets(headers: HeaderMap) -> HeaderMap {
    let single = |(name, value): (Option<HeaderName>, HeaderValue)| Some((name?, value));
    let headers = headers.into_iter().filter_map(single);
    headers.filter(|(_, value)| !value.is_sensitive()).collect()
}

/// Returns the header for the user and the password in a URL.
pub(crate) fn basic_auth(url: &Url) -> HeaderValue {
    let pair = format!("{}:{}", url.username(), url.password().unwrap_or_default());
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair)))
        .expect("base64 is valid in a header");
    value.set_sensitive(true);
    value
}
