//! Why an operation could not be computed.

/// Why an operation could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is wrong for tensors of any size.
    #[error("{0}")]
    Kind(String),
    /// It may be right for tensors of other sizes.
    #[error("{0}")]
    Size(String),
}

impl Error {
    /// Returns the reason without its kind.
    pub fn reason(self) -> String {
        match self {
            Self::Kind(reason) | Self::Size(reason) => reason,
        }
    }

    /// Adds where it happened.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        match self {
            Self::Kind(reason) => Self::Kind(format!("{place}: {reason}")),
            Self::Size(reason) => Self::Size(format!("{place}: {reason}")),
        }
    }
}
