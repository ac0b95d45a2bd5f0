//! Random identifiers.

use tinkrs_wire::text;

/// Returns a random UUID, version 4, as text.
pub(crate) fn v4() -> String {
    text::uuid_v4(fastrand::u128(..))
}
