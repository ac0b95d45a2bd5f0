//! Files to examples to batches.
//!
//! [`Record`]s come from a file ([`Rows`] says of which kinds), a renderer turns them into [`Examples`], and [`Batches`]
//! says which of them each step trains on.

mod examples;
mod jsonl;
mod packing;
mod record;
mod rows;
mod shuffle;
mod split;
mod task;

pub use examples::{Examples, TooLong};
pub(crate) use jsonl::{open_to_add, read_whole_lines};
pub use jsonl::{parse_jsonl, read_jsonl, read_numbered};
pub use record::Record;
pub use rows::{Layout, Rows};
pub use shuffle::Batches;
pub use split::Split;
pub use task::Task;
