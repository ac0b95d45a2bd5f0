//! Tensors of any rank, and how the cells of one relate to those of another.

use crate::Error;

/// What kind of numbers a tensor holds. Operations on two kinds have the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    /// Truth values, 0 or 1.
    Bool,
    /// Whole numbers.
    Int,
    /// Numbers with a fraction, the only ones that gradients pass through.
    Float,
}

/// Numbers in row-major order. Whatever their kind, they are kept as `f64`, which holds every
/// integer that a loss can meaningfully compute with.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The sizes of its dimensions.
    pub shape: Vec<usize>,
    /// The numbers.
    pub values: Vec<f64>,
    /// What kind of numbers they are.
    pub dtype: Dtype,
}

impl Tensor {
    /// Puts numbers into a shape that has as many cells.
    pub fn new(shape: Vec<usize>, values: Vec<f64>, dtype: Dtype) -> Self {
        debug_assert_eq!(size(&shape), values.len());
        Self {
            shape,
            values,
            dtype,
        }
    }

    /// Makes a single number.
    pub fn scalar(value: f64, dtype: Dtype) -> Self {
        Self::new(Vec::new(), vec![value], dtype)
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns how many numbers there are.
    #[expect(clippy::len_without_is_empty, reason = "a tensor is not a collection")]
    pub fn len(&self) -> usize {
        self.values.len()
    }
}

/// Which cell of a tensor is used for each cell of a larger one.
#[derive(Debug)]
pub enum Cells {
    /// The same one.
    Same,
    /// The only one.
    One,
    /// As listed.
    Listed(Vec<u32>),
}

impl Cells {
    /// Repeats `shape` along the dimensions that it lacks in `out`, which must be its broadcast.
    pub fn broadcast(shape: &[usize], out: &[usize]) -> Self {
        if shape == out {
            return Self::Same;
        }
        if size(shape) == 1 {
            return Self::One;
        }
        let mut strides = vec![0; out.len()];
        let skipped = out.len() - shape.len();
        let mut stride = 1;
        for (axis, &size) in shape.iter().enumerate().rev() {
            strides[skipped + axis] = if size == 1 { 0 } else { stride };
            stride *= size;
        }
        Self::Listed(walk(out, &strides))
    }

    /// Returns the cell that is used for `cell` of the larger tensor.
    pub fn at(&self, cell: usize) -> usize {
        match self {
            Self::Same => cell,
            Self::One => 0,
            Self::Listed(cells) => cells[cell] as usize,
        }
    }
}

/// Returns how many cells a shape has, or a number far above any limit.
pub fn size(shape: &[usize]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    shape
        .iter()
        .fold(1, |cells, size| cells.saturating_mul(*size))
}

/// Lists, for every cell of `shape` in order, the sum of its coordinates times `strides`.
pub fn walk(shape: &[usize], strides: &[usize]) -> Vec<u32> {
    let mut cells = vec![0_u32];
    for (&size, &stride) in shape.iter().zip(strides) {
        cells = cells
            .iter()
            .flat_map(|&cell| (0..size).map(move |step| cell + (step * stride) as u32))
            .collect();
    }
    cells
}

/// Returns how many cells to skip for a step in each dimension.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Returns the shape that two shapes have together: sizes of 1 are repeated.
///
/// # Errors
///
/// If other sizes differ.
pub fn together(a: &[usize], b: &[usize]) -> Result<Vec<usize>, Error> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| {
        let skipped = rank - shape.len();
        axis.checked_sub(skipped).map_or(1, |axis| shape[axis])
    };
    (0..rank)
        .map(|axis| match (size(a, axis), size(b, axis)) {
            (a, b) if a == b => Ok(a),
            (1, b) => Ok(b),
            (a, 1) => Ok(a),
            _ => Err(Error::Size(format!(
                "shapes {a:?} and {b:?} do not fit together"
            ))),
        })
        .collect()
}

/// A tensor seen as lines along one dimension: cell `(o, k, i)` is `(o · length + k) · inner + i`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lines {
    /// Cells before the dimension.
    pub outer: usize,
    /// Cells along it.
    pub length: usize,
    /// Cells behind it.
    pub inner: usize,
}

impl Lines {
    /// Sees a shape as lines along an axis.
    pub fn new(shape: &[usize], axis: usize) -> Self {
        // A scalar is a line of one cell.
        if shape.is_empty() {
            return Self {
                outer: 1,
                length: 1,
                inner: 1,
            };
        }
        Self {
            outer: shape[..axis].iter().product(),
            length: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }

    /// Returns a cell by its line and its place there.
    pub fn cell(self, line: usize, step: usize) -> usize {
        (line / self.inner * self.length + step) * self.inner + line % self.inner
    }

    /// Returns how many lines there are.
    pub fn count(self) -> usize {
        self.outer * self.inner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_repeat_where_they_have_one() {
        let shapes = |a: &[usize], b: &[usize]| together(a, b).ok();
        assert_eq!(shapes(&[3], &[]), Some(vec![3]));
        assert_eq!(shapes(&[2, 1], &[3]), Some(vec![2, 3]));
        assert_eq!(shapes(&[0], &[1]), Some(vec![0]));
        assert_eq!(shapes(&[2], &[3]), None);
        let cells = Cells::broadcast(&[2, 1], &[2, 3]);
        let listed: Vec<_> = (0..6).map(|cell| cells.at(cell)).collect();
        assert_eq!(listed, [0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn lines_run_along_their_dimension() {
        let lines = Lines::new(&[2, 3], 0);
        assert_eq!((lines.count(), lines.length), (3, 2));
        assert_eq!([lines.cell(1, 0), lines.cell(1, 1)], [1, 4]);
        assert_eq!(walk(&[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5]);
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
    }
}
