//! Results under way: what a caller awaits, and how they are fetched.

mod pending;
pub(crate) mod poll;
mod queue;
mod report;

pub use pending::Pending;
pub use queue::QueueNotice;
pub(crate) use queue::QueueObserver;
