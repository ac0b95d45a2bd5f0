//! `GET /healthz`: whether the server is up.

use serde::{Deserialize, Serialize};

/// The server's word that it is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Health {
    /// `ok`.
    pub status: String,
}
