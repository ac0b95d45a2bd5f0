//! Borrowed row-major matrices with a row stride.

/// A readable matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A writable matrix.
#[derive(Debug)]
pub(crate) struct MatMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(
        cols <= stride,
        "{cols} columns do not fit a stride of {stride}"
    );
    let needed = if rows == 0 {
        0
    } else {
        (rows - 1) * stride + cols
    };
    assert!(
        needed <= len,
        "{rows} rows of {cols} columns need {needed} elements, got {len}"
    );
}

impl<'a> Mat<'a> {
    /// Views a whole buffer as rows of `cols` columns.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Views `cols` columns of each row of `stride` elements.
    pub(crate) fn with_stride(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self {
            data,
            rows,
            cols,
            stride,
        }
    }

    /// Views some of the columns.
    pub(crate) fn columns(self, from: usize, cols: usize) -> Self {
        assert!(
            from + cols <= self.cols,
            "columns {from}..{} of {}",
            from + cols,
            self.cols
        );
        Self::with_stride(
            &self.data[from.min(self.data.len())..],
            self.rows,
            cols,
            self.stride,
        )
    }

    /// Views some of the rows.
    pub(crate) fn part(self, from: usize, rows: usize) -> Self {
        assert!(
            from + rows <= self.rows,
            "rows {from}..{} of {}",
            from + rows,
            self.rows
        );
        let start = (from * self.stride).min(self.data.len());
        Self::with_stride(&self.data[start..], rows, self.cols, self.stride)
    }

    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..self.cols]
    }

    /// Returns everything from the first element on, for kernels that take a stride.
    pub(crate) fn tail(&self) -> &'a [f32] {
        self.data
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

impl<'a> MatMut<'a> {
    /// Views a whole buffer as rows of `cols` columns.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Views `cols` columns of each row of `stride` elements.
    pub(crate) fn with_stride(
        data: &'a mut [f32],
        rows: usize,
        cols: usize,
        stride: usize,
    ) -> Self {
        check(data.len(), rows, cols, stride);
        Self {
            data,
            rows,
            cols,
            stride,
        }
    }

    /// Views some of the columns.
    pub(crate) fn columns(self, from: usize, cols: usize) -> Self {
        assert!(
            from + cols <= self.cols,
            "columns {from}..{} of {}",
            from + cols,
            self.cols
        );
        let from = from.min(self.data.len());
        Self::with_stride(&mut self.data[from..], self.rows, cols, self.stride)
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn data_mut(&mut self) -> &mut [f32] {
        self.data
    }
}
