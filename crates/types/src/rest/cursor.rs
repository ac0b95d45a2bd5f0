use serde::{Deserialize, Serialize};

/// Where a page lies in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Cursor {
    /// How many items come before the page.
    pub offset: u64,
    /// How many items the page may hold.
    pub limit: u64,
    /// How many items there are.
    pub total_count: u64,
}

impl Cursor {
    /// Makes the place of a page.
    pub fn new(offset: u64, limit: u64, total_count: u64) -> Self {
        Self {
            offset,
            limit,
            total_count,
        }
    }
}
