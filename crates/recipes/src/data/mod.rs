//! Files to examples to batches.
//!
//! [`Record`]s come from a JSONL file, a renderer turns them into [`Examples`], and [`Batches`]
//! says which of them each step trains on.

mod examples;
mod jsonl;
mod packing;
mod record;
mod shuffle;
mod split;
mod task;

pub use examples::{Examples, TooLong};
pub(crate) use jsonl::{open_to_add, read_whole_lines};
pub use jsonl::{parse_jsonl, read_jsonl, read_numbered};
pub use record::Record;
pub use shuffle::Batches;
pub use split::Split;
pub use task::Task;
