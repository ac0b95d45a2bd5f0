//! The commands.

pub(crate) mod auth;
pub(crate) mod billing;
pub(crate) mod chat;
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod conform;
pub(crate) mod data;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod export;
mod listing;
pub(crate) mod man;
pub(crate) mod model;
pub(crate) mod models;
pub(crate) mod report;
mod rows;
pub(crate) mod run;
pub(crate) mod sample;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod studio;
pub(crate) mod train;
pub(crate) mod version;
