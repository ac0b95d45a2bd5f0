//! The credential that requests carry.

use crate::Error;
use crate::auth::token_cache::TokenCache;
use crate::auth::{CredentialSource, Secret};
use http::header::HeaderValue;

/// How to get the credential for the next request.
pub(crate) enum Credential {
    /// It never changes.
    Fixed(HeaderValue),
    /// It is asked for each time, since it comes from a command.
    Source(CredentialSource),
    /// It is a token that another credential was exchanged for.
    Exchanged(TokenCache<Error>),
}

impl Credential {
    pub(crate) fn new(source: CredentialSource) -> Result<Self, Error> {
        Ok(match source.fixed() {
            Some(secret) => Self::Fixed(secret.to_header()?),
            None => Self::Source(source),
        })
    }

    /// Returns what to send, getting it first if it must.
    pub(crate) async fn header(&self) -> Result<HeaderValue, Error> {
        match self {
            Self::Fixed(header) => Ok(header.clone()),
            Self::Source(source) => Ok(source.credential().await?.to_header()?),
            Self::Exchanged(tokens) => Ok(tokens.token().await?.header().clone()),
        }
    }

    /// Returns the token that identifies the user, and whether it was exchanged.
    pub(crate) async fn token(&self, source: &CredentialSource) -> Result<(Secret, bool), Error> {
        match self {
            Self::Exchanged(tokens) => Ok((tokens.token().await?.secret().clone(), true)),
            Self::Fixed(_) | Self::Source(_) => Ok((source.credential().await?, false)),
        }
    }

    /// Stops whatever keeps the credential fresh.
    pub(crate) fn close(&self) {
        if let Self::Exchanged(tokens) = self {
            tokens.close();
        }
    }
}

/// Names a credential without showing it.
pub(crate) fn digest(source: &CredentialSource) -> [u8; 32] {
    let text = match source.fixed() {
        Some(secret) => secret.expose().to_owned(),
        // All clients of one process run the same command, so they are one account.
        None => "credential command".to_owned(),
    };
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}
