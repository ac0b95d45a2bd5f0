//! Results under way: what a caller awaits, and how they are fetched.

mod pending;
pub(crate) mod poll;
mod queue_state;
pub(crate) mod report;
pub(crate) mod result_size;

pub use pending::Pending;
pub use queue_state::QueueNotice;
pub(crate) use queue_state::QueueObserver;
