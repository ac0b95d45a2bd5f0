//! `GET /data-folder`: whether the server holds a data folder.

use serde::{Deserialize, Serialize};

/// What only a server that holds the folder can know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FolderProof {
    /// The nonce, signed with the token that is in the folder.
    pub proof: String,
}
