//! `GET /auth/apikey/me`: what the server knows of the key that asks.

use serde::{Deserialize, Serialize};

/// The key that the request was made with, without the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApiKey {
    /// Its number.
    pub key_id: u64,
    /// Its name.
    pub name: String,
    /// A note on it.
    pub note: String,
    /// Whose it is.
    pub details: KeyDetails,
}

/// Whose key it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyDetails {
    /// The organization.
    pub org_details: OrgDetails,
    /// The user.
    pub user_details: UserDetails,
}

/// An organization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrgDetails {
    /// Its name.
    pub name: String,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserDetails {
    /// The user's address.
    pub email: String,
}
