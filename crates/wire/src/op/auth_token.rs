//! `POST /auth/token`: exchanges a credential for a short-lived token.

use crate::json::body;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Asks for a token. The credential is in the header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuthTokenRequest {}

body!(AuthTokenRequest);

/// A short-lived token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuthTokenResponse {
    /// The token.
    pub jwt: String,
}

impl fmt::Debug for AuthTokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthTokenResponse").finish_non_exhaustive()
    }
}
