use crate::external::HttpError;
use crate::rest::download::DownloadError;
use std::path::PathBuf;

/// Why something could not be had from the Hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The Hub did not respond.
    #[error("could not reach the Hub at {endpoint}")]
    Unreachable {
        /// Its address.
        endpoint: String,
        /// Why.
        source: HttpError,
    },

    /// The Hub does not show the repository.
    #[error("the Hub does not show {repo}: status {status}: {reason}{}", advice(*.status))]
    Refused {
        /// The repository.
        repo: String,
        /// The status.
        status: u16,
        /// The Hub's reason, or what the status usually means.
        reason: String,
    },

    /// The response is not one of the Hub's.
    #[error(
        "the response about {repo} is not one of the Hub's: is {endpoint} a Hub, and not a login page?"
    )]
    NotTheHub {
        /// The repository.
        repo: String,
        /// The address that responded.
        endpoint: String,
        /// What is wrong with the response.
        source: HttpError,
    },

    /// The Hub says too little about a repository or a file, or what cannot be.
    #[error("the Hub's response about {repo} has {problem}")]
    Malformed {
        /// The repository.
        repo: String,
        /// What is wrong.
        problem: String,
    },

    /// The repository lacks what is needed.
    #[error("{repo} has no {what} on the Hub")]
    Missing {
        /// The repository.
        repo: String,
        /// What it lacks.
        what: &'static str,
    },

    /// A file could not be downloaded.
    #[error("could not download {name} of {repo}")]
    Download {
        /// The repository.
        repo: String,
        /// The file.
        name: String,
        /// Why.
        source: DownloadError,
    },

    /// The cache could not be written.
    #[error("could not write {}", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 | 404 => {
            " (check its name; if it is private or asks you to agree to its terms, do so and set HF_TOKEN to a token \
             of yours)"
        }
        _ => "",
    }
}
