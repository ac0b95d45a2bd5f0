use serde::{Deserialize, Serialize};

/// Where a page lies in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// How many items come before the page.
    pub offset: u64,
    /// How many items the page may hold.
    pub limit: u64,
    /// How many items there are.
    pub total_count: u64,
}
