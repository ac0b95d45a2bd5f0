//! What the studio's pages and other clients of ours ask of a server.

use crate::json::body;
use serde::{Deserialize, Serialize};

/// Asks for a path that logs a browser in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateLoginLinkRequest {}

body!(CreateLoginLinkRequest);

/// Where a browser logs in, once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoginLink {
    /// The path, behind the address of the server.
    pub path: String,
}

/// The path is a credential.
impl std::fmt::Debug for LoginLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginLink").finish_non_exhaustive()
    }
}

/// Asks for the demo to be started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartDemoRequest {}

body!(StartDemoRequest);

/// Asks for a link that lets anyone read a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShareRunRequest {
    /// For how many hours, from 1 to 720.
    pub hours: u64,
}

body!(ShareRunRequest);

/// A link that lets anyone read a run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SharedRun {
    /// The link.
    pub url: String,
}

/// The link is a credential.
impl std::fmt::Debug for SharedRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedRun").finish_non_exhaustive()
    }
}
