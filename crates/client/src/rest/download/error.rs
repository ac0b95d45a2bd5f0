use crate::BoxError;
use std::path::PathBuf;

/// Why a checkpoint could not be downloaded.
///
/// No message contains a link: links are signed, so anyone who reads one can use it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// There is nothing to download.
    #[error("the checkpoint has no files")]
    NoFiles,

    /// A file's name leads out of the folder, or cannot be a name on every system.
    #[error("refused the file name {name:?}: {reason}")]
    UnsafeName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// Something in the folder is in a file's way.
    #[error("refused to write {}: {reason}", path.display())]
    InTheWay {
        /// What is in the way.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The server gave no links.
    #[error("could not get the links of the checkpoint's files")]
    Links(#[source] BoxError),

    /// The server gave a link for the file at first, and later did not.
    #[error("{name:?} is no longer one of the checkpoint's files")]
    Gone {
        /// The file.
        name: String,
    },

    /// The file could not be had, even after retrying.
    #[error("could not download {name:?} ({attempts} attempts without progress)")]
    GaveUp {
        /// The file.
        name: String,
        /// How many attempts in a row brought nothing new.
        attempts: u32,
        /// What the last attempt failed with.
        source: Trouble,
    },

    /// The file is larger than the limit.
    #[error("{name:?} has more than {limit_bytes} bytes, which is the limit")]
    TooLarge {
        /// The file.
        name: String,
        /// The limit.
        limit_bytes: u64,
    },

    /// The file was downloaded and is not the one that was expected.
    #[error("{name:?} has the digest {found}, expected {expected}")]
    WrongDigest {
        /// The file.
        name: String,
        /// The digest that it should have.
        expected: String,
        /// The digest that it has.
        found: String,
    },

    /// A file could not be read or written.
    #[error("could not {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
}

/// What one attempt at a download failed with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The connection could not be made, or broke.
    #[error("the connection broke")]
    Connection(#[source] BoxError),

    /// Nothing arrived for a long time.
    #[error("nothing arrived for {0} s")]
    Stalled(u64),

    /// So little arrived that the download would not end.
    #[error("only {bytes} bytes arrived in {seconds} s")]
    TooSlow {
        /// How much.
        bytes: u64,
        /// In how long.
        seconds: u64,
    },

    /// The server refused the request.
    #[error("status {0}")]
    Status(u16),

    /// The response does not fit the request, or an earlier response.
    #[error("{0}")]
    Answer(&'static str),
}

impl DownloadError {
    /// Whether another download of the same file is under way, in this process or in another one.
    #[cfg_attr(
        not(feature = "tokenizers"),
        expect(dead_code, reason = "the hub's cache waits for it")
    )]
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock)
    }
}

pub(super) fn file_error(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(std::io::Error) -> DownloadError {
    let path = path.into();
    move |source| DownloadError::File {
        action,
        path,
        source,
    }
}
