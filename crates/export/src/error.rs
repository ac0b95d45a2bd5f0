use std::path::{Path, PathBuf};

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model or the adapter cannot be read, or they do not fit each other.
    #[error(transparent)]
    Engine(#[from] tinkrs_engine::Error),

    /// The model's tokenizer or chat template cannot be used.
    #[error(transparent)]
    Chat(#[from] tinkrs_chat::Error),

    /// A file could not be read or written.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },

    /// A file is not JSON.
    #[error("{} is not a JSON object", path.display())]
    Json {
        /// The file.
        path: PathBuf,
    },

    /// The format has no way to say this.
    #[error("{0}")]
    Unsupported(String),

    /// There is something in the folder already.
    #[error("{} is not empty", .0.display())]
    Occupied(PathBuf),

    /// The folder has something that no export writes, so it is not replaced.
    #[error("{} has `{}`, which no export has written: it is not replaced", folder.display(), found.display())]
    NotAnExport {
        /// The folder.
        folder: PathBuf,
        /// What is in it.
        found: PathBuf,
    },

    /// The folder that is to be replaced has what is exported.
    #[error("{} is exported, and would be replaced by its own export", .0.display())]
    Source(PathBuf),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
