//! The commands.

pub(crate) mod serve;
pub(crate) mod version;
