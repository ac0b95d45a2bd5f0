//! The commands.

pub(crate) mod auth;
pub(crate) mod billing;
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod doctor;
mod listing;
pub(crate) mod man;
pub(crate) mod model;
mod rows;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod version;
