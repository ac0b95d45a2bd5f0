//! A neutral suite of tests for Tinker servers.
//!
//! [`Suite::run`] sends a server what the official client sends, request by request, and compares what comes back with
//! what the protocol requires. Each [`Case`] has a name, a sentence that says what it checks, and the section of the
//! protocol that it rests on; what a server may choose freely is not checked.
//!
//! The suite shares no state with the SDK: it makes its own requests (`wire.rs`), so that it can repeat them, send them in the
//! wrong order and send wrong ones. Each case has a session of its own and a time limit (`trial.rs`); when it ends, its
//! checkpoints are deleted and its session is finished.
//!
//! Invariant: nothing that a server sends can make the suite panic, wait forever or use memory without bound.

mod case;
mod cases;
mod numbers;
mod report;
mod run;
mod sampler;
mod suite;
mod trial;
mod wire;

pub use case::{Case, Need};
pub use report::{Outcome, Report, Row};
pub use suite::{Options, Suite, all_cases};
