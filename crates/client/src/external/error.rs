use crate::BoxError;
use std::path::PathBuf;
use std::time::Duration;

/// Why a request to another host failed.
///
/// A response with an error status is not one of these: it is a response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The URL cannot be used.
    #[error("the URL is not valid, or does not start with http:// or https://")]
    InvalidUrl,

    /// A header cannot be sent.
    #[error("the header `{name}` contains characters that are not allowed")]
    InvalidHeader {
        /// Its name.
        name: String,
    },

    /// The connection could not be made, or broke.
    #[error("the connection failed")]
    Connection(#[source] BoxError),

    /// The host was silent for too long.
    #[error("no response within {} s", .0.as_secs_f64())]
    Timeout(Duration),

    /// The host redirects again and again.
    #[error("too many redirects")]
    TooManyRedirects,

    /// The response is longer than expected.
    #[error("the response is longer than {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },

    /// The response is not what it should be.
    #[error("could not parse the response")]
    Parse(#[source] BoxError),

    /// A file that should be sent could not be read.
    #[error("could not read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
}

impl HttpError {
    pub(super) fn connection(error: impl Into<BoxError>) -> Self {
        Self::Connection(error.into())
    }
}
