//! The credential that requests carry.

use crate::Error;
use crate::auth::token_cache::TokenCache;
use crate::auth::{CredentialSource, Secret};
use http::header::HeaderValue;

/// A credential, and where it comes from.
pub(crate) struct Credential {
    source: CredentialSource,
    kind: Kind,
}

/// How to get the credential for the next request.
enum Kind {
    /// It never changes.
    Fixed(HeaderValue),
    /// It comes from a command, which is run each time.
    Command,
    /// It is a token that the source's credential is exchanged for.
    Exchanged(TokenCache<Error>),
}

impl Credential {
    pub(crate) fn new(source: CredentialSource) -> Result<Self, Error> {
        let kind = match source.fixed() {
            Some(secret) => Kind::Fixed(secret.to_header()?),
            None => Kind::Command,
        };
        Ok(Self { source, kind })
    }

    /// Makes a credential that is exchanged for tokens.
    pub(crate) fn exchanged(source: CredentialSource, tokens: TokenCache<Error>) -> Self {
        Self {
            source,
            kind: Kind::Exchanged(tokens),
        }
    }

    pub(super) fn source(&self) -> &CredentialSource {
        &self.source
    }

    /// Returns the header to send, after getting a new credential if needed.
    pub(crate) async fn header(&self) -> Result<HeaderValue, Error> {
        match &self.kind {
            Kind::Fixed(header) => Ok(header.clone()),
            Kind::Command => Ok(self.source.credential().await?.to_header()?),
            Kind::Exchanged(tokens) => Ok(tokens.token().await?.header().clone()),
        }
    }

    /// Returns the token that identifies the user, and whether it was exchanged.
    pub(crate) async fn token(&self) -> Result<(Secret, bool), Error> {
        match &self.kind {
            Kind::Exchanged(tokens) => Ok((tokens.token().await?.secret().clone(), true)),
            Kind::Fixed(_) | Kind::Command => Ok((self.source.credential().await?, false)),
        }
    }

    /// Stops the task that renews the token, if there is one.
    pub(crate) fn close(&self) {
        if let Kind::Exchanged(tokens) = &self.kind {
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
    sha256(&text)
}

pub(super) fn sha256(text: &str) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}
