use crate::TinkerPath;
use serde::{Deserialize, Serialize};

/// A checkpoint that was saved to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExternalSave {
    /// Its path.
    pub path: TinkerPath,
    /// Its size.
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

impl ExternalSave {
    /// Names the checkpoint.
    pub fn new(path: TinkerPath, size_bytes: Option<u64>) -> Self {
        Self { path, size_bytes }
    }
}
