//! A matrix that several threads write at once, each its own rectangle.

#![expect(
    unsafe_code,
    reason = "disjoint rectangles of one buffer cannot be expressed as slices"
)]

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

    /// Returns part of one row as a slice.
    ///
    /// # Safety
    /// As for [`at`](Self::at), for the whole part.
    pub(crate) unsafe fn row_part<'a>(self, row: usize, col: usize, len: usize) -> &'a mut [f32] {
        assert!(
            row < self.rows && col + len <= self.cols,
            "part of a row out of range"
        );
        // SAFETY: in range by the assertion; exclusive by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride + col), len) }
    }
}
