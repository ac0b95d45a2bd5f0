use std::fmt;
use std::path::PathBuf;

/// Why the client has no credential that it could use.
///
/// No message contains a credential, nor the credential command, which may hold one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// No credential was found anywhere.
    #[error(
        "no API key: set `TINKER_API_KEY`, pass one to `ServiceClient::builder().api_key(..)`, \
         or run `tinkrs auth login`"
    )]
    Missing,

    /// A key is not one of the kinds that there are.
    #[error("the API key {0} must start with `tml-`, or with `eyJ` if it is a token")]
    BadPrefix(KeyOrigin),

    /// The server takes no keys from this account.
    #[error(
        "this organization requires dynamic credentials: set `TINKER_CREDENTIAL_CMD` to a command \
         that prints one"
    )]
    CommandRequired,

    /// The server takes nothing but keys, and there is only a command.
    #[error(
        "this server takes API keys only, not the output of `TINKER_CREDENTIAL_CMD`: set \
         `TINKER_API_KEY`, or run `tinkrs auth login`"
    )]
    KeyRequired,

    /// The credential command could not be run.
    #[error("could not run the command in `TINKER_CREDENTIAL_CMD`")]
    CommandNotRun(#[source] std::io::Error),

    /// The credential command printed no credential.
    #[error("the command in `TINKER_CREDENTIAL_CMD` printed {0}")]
    CommandOutput(&'static str),

    /// The credential cannot be sent.
    #[error("the credential contains characters that an HTTP header cannot carry")]
    NotAHeader,

    /// The credential says nothing about its owner.
    #[error("the credential does not say whose it is: {0}")]
    NoIdentity(&'static str),

    /// There is no home directory to keep credentials in.
    #[error("no home directory to keep credentials in: set `HOME`")]
    NoHome,

    /// The file of stored credentials could not be read or written.
    #[error("could not {action} {}", path.display())]
    Store {
        /// What was tried.
        action: &'static str,
        /// The file or its directory.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },

    /// The file of stored credentials is not what it should be.
    #[error(
        "{} is malformed: {problem}; repair or remove it, then run `tinkrs auth login`",
        path.display()
    )]
    MalformedStore {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
}

/// Where an API key came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyOrigin {
    /// The caller passed it.
    Argument,
    /// From `TINKER_API_KEY`.
    Environment,
    /// From the stored credentials.
    Store,
}

impl fmt::Display for KeyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argument => "that was passed to the client",
            Self::Environment => "in `TINKER_API_KEY`",
            Self::Store => "in the stored credentials",
        })
    }
}
