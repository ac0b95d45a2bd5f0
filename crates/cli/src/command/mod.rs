//! The commands.

pub(crate) mod auth;
pub(crate) mod billing;
pub(crate) mod checkpoint;
mod listing;
pub(crate) mod model;
mod rows;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod version;
