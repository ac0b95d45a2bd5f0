//! Files to examples to batches.
//!
//! [`Record`]s come from a file ([`Rows`] says of which kinds), a renderer turns them into [`Examples`], and [`Batches`]
//! says which of them each step trains on.

mod columns;
mod examples;
mod folder;
mod format;
mod jsonl;
mod mix;
mod packing;
mod place;
mod record;
mod row;
mod rows;
mod set;
mod shuffle;
mod source;
mod split;
mod store;
mod task;
mod text_rows;

pub use examples::{Examples, TooLong};
pub use format::{DataFormat, Form, Layout};
pub(crate) use jsonl::{open_to_add, read_whole_lines};
pub use jsonl::{parse_jsonl, parse_row, parse_rows, read_jsonl, read_numbered};
pub use mix::Mix;
pub use place::Place;
pub use record::Record;
pub use row::TextRow;
pub use rows::Rows;
pub use set::DataSet;
pub use shuffle::Batches;
pub use source::Source;
pub use split::Split;
pub use store::{ExampleStore, Store, Stored};
pub use task::Task;
