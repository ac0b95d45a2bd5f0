//! The cases, a file for each group.

mod bursts;
mod checkpoints;
mod errors;
mod futures;
mod listings;
mod losses;
mod models;
mod optimizer;
mod ordering;
mod passes;
mod sampling;
mod scoring;
mod service;
mod sessions;
mod weights;

use crate::case::Case;

/// All groups, in the order in which they run: what others rest on comes first, what may harm a server last.
pub(crate) const GROUPS: &[&[Case]] = &[
    service::CASES,
    sessions::CASES,
    models::CASES,
    passes::CASES,
    futures::CASES,
    losses::CASES,
    optimizer::CASES,
    sampling::CASES,
    scoring::CASES,
    ordering::CASES,
    weights::CASES,
    checkpoints::CASES,
    listings::CASES,
    errors::CASES,
    bursts::CASES,
];
