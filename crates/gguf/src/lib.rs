//! Reads the header of a GGUF model file, its metadata and where its tensors are, and writes such files.
//!
//! The crate knows the container and nothing of what is in it: the engine reads model
//! configurations and weights with it, the chat crate reads tokenizers and chat templates, and the export
//! crate writes files that others read.
//!
//! ```
//! let file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
//! let header = tinkrs_gguf::Header::parse(file)?;
//! assert!(header.tensors.is_empty());
//! assert_eq!(header.text("general.architecture"), None);
//! # Ok::<(), tinkrs_gguf::Error>(())
//! ```
//!
//! Files come from anywhere, so nothing in one is believed: every length is checked against what is
//! left before it is used, and nothing is allocated on the word of a count.

mod array;
mod cursor;
mod header;
mod writer;

pub use array::Array;
pub use header::{Header, TensorInfo, Value};
pub use writer::{Contents, TensorWriter};

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is shorter than its header says.
    #[error("it ends at byte {length} within the header")]
    Truncated {
        /// Bytes that there are.
        length: usize,
    },

    /// The header holds something that the format does not allow.
    #[error("{0}")]
    Malformed(String),

    /// The file could not be read from disk.
    #[error("it could not be read")]
    Io(#[from] std::io::Error),
}

impl Error {
    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed(reason.into())
    }
}
