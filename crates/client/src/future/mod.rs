//! Results under way: what a caller awaits, and how they are fetched.

mod pending;
pub(crate) mod poll;
mod queue_state;
mod report;

pub use pending::Pending;
pub use queue_state::QueueNotice;
pub(crate) use queue_state::QueueObserver;
