//! Which row of a packed batch belongs to which sequence and adapter.

use std::ops::Range;

use crate::adapter::Adapter;

/// Elements that a thread should have before another one helps with row-wise work.
pub(crate) const ROW_WORK: usize = 1 << 15;

/// How many rows of `width` elements make a task.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (ROW_WORK / width.max(1)).max(1)
}

/// The rows of a batch: sequences one after the other, without padding.
#[derive(Debug, Default)]
pub(crate) struct Rows<'a> {
    spans: Vec<Span>,
    positions: Vec<usize>,
    adapters: Vec<(Range<usize>, &'a Adapter)>,
}

/// The rows of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) rows: Range<usize>,
    /// Position of the first row in its sequence: the number of tokens in its cache.
    pub(crate) position: usize,
}

impl<'a> Rows<'a> {
    /// Adds a sequence.
    pub(crate) fn push(&mut self, len: usize, position: usize, adapter: Option<&'a Adapter>) {
        let start = self.len();
        let rows = start..start + len;
        self.positions.extend(position..position + len);
        self.spans.push(Span {
            rows: rows.clone(),
            position,
        });
        if let Some(adapter) = adapter {
            match self.adapters.last_mut() {
                Some((range, last)) if std::ptr::eq(*last, adapter) && range.end == start => {
                    range.end = rows.end
                }
                _ => self.adapters.push((rows, adapter)),
            }
        }
    }

    /// Picks rows, in ascending order, for work that sees no sequences: only their adapters are known.
    pub(crate) fn select(&self, rows: &[usize]) -> Self {
        let adapters = self.adapters.iter().filter_map(|(range, adapter)| {
            let start = rows.partition_point(|&row| row < range.start);
            let end = rows.partition_point(|&row| row < range.end);
            (start < end).then_some((start..end, *adapter))
        });
        Self {
            spans: Vec::new(),
            positions: rows.iter().map(|&row| self.positions[row]).collect(),
            adapters: adapters.collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Position of each row in its sequence.
    pub(crate) fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Neighbouring rows with the same adapter; rows without one are left out.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = (Range<usize>, &'a Adapter)> {
        self.adapters.iter().cloned()
    }
}
