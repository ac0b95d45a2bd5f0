//! The one error type of a backend.

use std::error::Error as StdError;
use std::fmt;

use tinkrs_types::InvalidInput;

type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a backend could not do something.
///
/// Its message and sources are those of the backend's own error, which [`get_ref`](Self::get_ref) gives.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    cause: BoxError,
}

/// Who or what is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request: the same one will fail again.
    BadRequest,
    /// A weight, gradient or result is not finite, because of the data and settings of the training.
    Divergence,
    /// The disk refused to read or write.
    Storage,
    /// The files of a model or checkpoint, or the backend itself.
    Other,
}

impl Error {
    /// Makes an error of a backend's own one.
    pub fn new(kind: ErrorKind, cause: impl Into<BoxError>) -> Self {
        let cause = cause.into();
        Self { kind, cause }
    }

    /// Says what is wrong with a request.
    pub fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadRequest, reason.into())
    }

    /// Returns who or what is at fault.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns whether the request is at fault: the same one will fail again.
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        self.kind == ErrorKind::BadRequest
    }

    /// Returns whether the training has diverged: a number of it is not finite.
    #[must_use]
    pub fn is_divergence(&self) -> bool {
        self.kind == ErrorKind::Divergence
    }

    /// Returns whether the disk refused to read or write. The same request may succeed later.
    #[must_use]
    pub fn is_storage(&self) -> bool {
        self.kind == ErrorKind::Storage
    }

    /// Returns the backend's own error.
    #[must_use]
    pub fn get_ref(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.cause
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The cause's message is this error's own, so the chain continues behind it.
        self.cause.source()
    }
}

impl From<InvalidInput> for Error {
    fn from(error: InvalidInput) -> Self {
        Self::new(ErrorKind::BadRequest, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_names_each_cause_once() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("could not read the state")
            }
        }
        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        let error = Error::new(ErrorKind::Storage, Outer(std::io::Error::other("no disk")));
        assert_eq!(error.to_string(), "could not read the state");
        assert_eq!(error.source().unwrap().to_string(), "no disk");
        assert!(error.is_storage() && !error.is_bad_request() && !error.is_divergence());
        assert!(error.get_ref().is::<Outer>());
    }
}
