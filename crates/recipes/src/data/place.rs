//! Where in which file something was read.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A line of a text, or a row of a table without lines: `chats.jsonl, line 3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    path: Arc<Path>,
    number: usize,
    is_row: bool,
}

impl Place {
    /// Names a line, counted from 1.
    pub fn line(path: impl Into<Arc<Path>>, number: usize) -> Self {
        Self {
            path: path.into(),
            number,
            is_row: false,
        }
    }

    /// Names a row, counted from 1.
    pub fn row(path: impl Into<Arc<Path>>, number: usize) -> Self {
        Self {
            is_row: true,
            ..Self::line(path, number)
        }
    }

    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the line or row, from 1.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns `line` or `row`.
    pub fn unit(&self) -> &'static str {
        if self.is_row { "row" } else { "line" }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} {}",
            self.path.display(),
            self.unit(),
            self.number
        )
    }
}
