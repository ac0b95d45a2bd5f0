//! A matrix that several threads write at once, each its own rectangle.

#![expect(
    unsafe_code,
    reason = "disjoint rectangles of one buffer cannot be expressed as slices"
)]

use std::ops::Range;

use rayon::prelude::*;

use super::matrix::MatMut;

/// A writable matrix that can be handed to several tasks.
///
/// Rows interleave in memory, so two column ranges of one matrix are no slices; tasks get raw pointers.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    start: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
}

// SAFETY: the pointer is only dereferenced by tasks that own disjoint rectangles (see `at`), while the
// exclusive borrow that made it keeps everyone else away.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Gives up an exclusive borrow for the time of a parallel loop.
    pub(crate) fn new(matrix: &mut MatMut<'_>) -> Self {
        let (rows, cols, stride) = (matrix.rows(), matrix.cols(), matrix.stride());
        Self {
            start: matrix.data_mut().as_mut_ptr(),
            rows,
            cols,
            stride,
        }
    }

    /// Returns a pointer to one element.
    ///
    /// # Safety
    /// The borrow given to [`new`](Self::new) must still be live, and no other task may touch the
    /// rectangle that the caller reads or writes from here.
    pub(crate) unsafe fn at(self, row: usize, col: usize) -> *mut f32 {
        debug_assert!(
            row < self.rows && col < self.cols,
            "({row}, {col}) of {}x{}",
            self.rows,
            self.cols
        );
        // SAFETY: `MatMut` guarantees that every row and column lies in its buffer.
        unsafe { self.start.add(row * self.stride + col) }
    }

    pub(crate) fn stride(self) -> usize {
        self.stride
    }
}

/// Runs a task for each pair of a row range and a group of column ranges, and gives it those rows and
/// columns to write. `parallel` says whether the tasks are worth several threads.
///
/// # Panics
///
/// When row ranges or column ranges overlap or leave the matrix.
pub(crate) fn for_each_part(
    mut matrix: MatMut<'_>,
    rows: &[Range<usize>],
    groups: &[Vec<Range<usize>>],
    parallel: bool,
    task: impl Fn(usize, usize, Part<'_>) + Sync,
) {
    assert_disjoint(rows.to_vec(), matrix.rows());
    assert_disjoint(groups.iter().flatten().cloned().collect(), matrix.cols());
    let shared = Shared::new(&mut matrix);
    let one = |index: usize| {
        let (row, group) = (index / groups.len(), index % groups.len());
        task(
            row,
            group,
            Part {
                shared,
                rows: rows[row].clone(),
                columns: &groups[group],
            },
        );
    };
    let tasks = rows.len() * groups.len();
    if parallel {
        (0..tasks).into_par_iter().with_max_len(1).for_each(one);
    } else {
        (0..tasks).for_each(one);
    }
}

fn assert_disjoint(mut ranges: Vec<Range<usize>>, end: usize) {
    ranges.sort_by_key(|range| range.start);
    let apart = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
    let inside = ranges.last().is_none_or(|last| last.end <= end);
    assert!(
        apart && inside,
        "parts overlap or leave the matrix: {ranges:?} of {end}"
    );
}

/// The rows and columns of one task of [`for_each_part`].
pub(crate) struct Part<'a> {
    shared: Shared,
    rows: Range<usize>,
    columns: &'a [Range<usize>],
}

impl Part<'_> {
    /// Writes into one row, counted from the part's first, from some column of one of its ranges on.
    pub(crate) fn write(&mut self, row: usize, range: usize, offset: usize, values: &[f32]) {
        let columns = &self.columns[range];
        assert!(
            row < self.rows.len() && offset + values.len() <= columns.len(),
            "outside the part"
        );
        // SAFETY: the place lies in this part, as asserted, and no other part covers it: ranges of rows
        // and of columns were found disjoint before the tasks started. The matrix outlives the tasks.
        unsafe {
            let to = self
                .shared
                .at(self.rows.start + row, columns.start + offset);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_write_their_own_rows_and_columns() {
        let mut data = vec![0.0; 4 * 6];
        let groups = [vec![0..2, 4..5], vec![2..3, 3..4]];
        for_each_part(
            MatMut::new(&mut data, 4, 6),
            &[0..1, 1..4],
            &groups,
            true,
            |rows, group, mut part| {
                let value = (10 * (rows + 1) + group) as f32;
                part.write(0, 0, 0, &[value]);
                part.write(0, 1, 0, &[-value]);
            },
        );
        assert_eq!(data[..6], [10.0, 0.0, 11.0, -11.0, -10.0, 0.0]);
        assert_eq!(data[6..12], [20.0, 0.0, 21.0, -21.0, -20.0, 0.0]);
        assert_eq!(data[12..], [0.0; 12]);
    }

    #[test]
    #[should_panic(expected = "parts overlap")]
    fn overlapping_parts_are_refused() {
        for_each_part(
            MatMut::new(&mut [0.0; 8], 2, 4),
            &[0..1, 1..2],
            &[vec![0..2, 1..3]],
            false,
            |_, _, _| {},
        );
    }
}
