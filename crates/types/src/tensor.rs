//! Tensors as the API knows them: `float32` or `int64`, dense or compressed sparse rows.
//!
//! Values are one flat, row-major vector. A tensor without a shape is one-dimensional; the
//! difference is kept because it is visible on the wire.

use crate::InvalidInput;
use crate::error::elements;
use serde::{Deserialize, Serialize};
use std::fmt;

mod csr;
mod json;

pub use csr::CsrIndices;

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit floating point.
    Float32,
    /// 64-bit signed integer.
    Int64,
}

impl Dtype {
    /// Returns the size of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Int64 => 8,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float32 => "float32",
            Self::Int64 => "int64",
        })
    }
}

/// The elements of a tensor in one flat vector.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TensorValues {
    /// `float32` elements.
    F32(Vec<f32>),
    /// `int64` elements.
    I64(Vec<i64>),
}

impl TensorValues {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::Float32,
            Self::I64(_) => Dtype::Int64,
        }
    }
}

impl From<Vec<f32>> for TensorValues {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl From<Vec<i64>> for TensorValues {
    fn from(values: Vec<i64>) -> Self {
        Self::I64(values)
    }
}

/// A tensor: flat values, an optional shape, and indices if it is sparse.
///
/// ```
/// use tinkrs_types::TensorData;
///
/// let weights = TensorData::from(vec![0.0, 1.0, 1.0]);
/// assert_eq!(weights.as_f32(), Some(&[0.0, 1.0, 1.0][..]));
///
/// let targets = TensorData::with_shape(vec![5_i64, 6, 7, 8, 9, 10], [3, 2])?;
/// assert_eq!(targets.shape(), Some(&[3, 2][..]));
/// # Ok::<(), tinkrs_types::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "json::Json", into = "json::Json")]
pub struct TensorData {
    values: TensorValues,
    shape: Option<Vec<usize>>,
    csr: Option<CsrIndices>,
}

impl TensorData {
    /// The most cells of a sparse tensor's dense form: 131,072 positions with 1,024 targets.
    ///
    /// A few bytes can claim any number of columns, and losses compute with the dense form.
    pub const MAX_SPARSE_CELLS: usize = 1 << 27;

    /// Makes a dense tensor with a shape, without copying the values.
    ///
    /// # Errors
    /// If the shape does not have as many cells as there are values.
    pub fn with_shape(
        values: impl Into<TensorValues>,
        shape: impl Into<Vec<usize>>,
    ) -> Result<Self, InvalidInput> {
        let (values, shape) = (values.into(), shape.into());
        let cells = cell_count(&shape)?;
        if cells != values.len() {
            return Err(InvalidInput::new(
                "shape",
                format_args!("{shape:?}, which has {cells} cells"),
                format!("{}, as many as there are values", values.len()),
            ));
        }
        Ok(Self {
            values,
            shape: Some(shape),
            csr: None,
        })
    }

    /// Makes a dense tensor that states no shape; it counts as one-dimensional.
    pub fn without_shape(values: impl Into<TensorValues>) -> Self {
        Self {
            values: values.into(),
            shape: None,
            csr: None,
        }
    }

    /// Makes a two-dimensional tensor from rows of equal length.
    ///
    /// # Errors
    /// If the rows differ in length.
    pub fn from_rows<T, R>(rows: &[R]) -> Result<Self, InvalidInput>
    where
        T: Copy,
        R: AsRef<[T]>,
        Vec<T>: Into<TensorValues>,
    {
        let columns = rows.first().map_or(0, |row| row.as_ref().len());
        let mut values = Vec::with_capacity(rows.len() * columns);
        for (index, row) in rows.iter().enumerate() {
            if row.as_ref().len() != columns {
                return Err(InvalidInput::new(
                    format!("row {index}"),
                    elements(row.as_ref().len()),
                    format!("{columns}, as in the first row"),
                ));
            }
            values.extend_from_slice(row.as_ref());
        }
        Self::with_shape(values, [rows.len(), columns])
    }

    /// Makes a sparse tensor in compressed sparse rows.
    ///
    /// # Errors
    /// If shape, row pointers, columns and values do not fit together, or the dense form would
    /// have more than [`MAX_SPARSE_CELLS`](Self::MAX_SPARSE_CELLS).
    pub fn sparse(
        values: impl Into<TensorValues>,
        indices: CsrIndices,
        shape: [usize; 2],
    ) -> Result<Self, InvalidInput> {
        let values = values.into();
        csr::check(values.len(), &indices, shape)?;
        Ok(Self {
            values,
            shape: Some(shape.to_vec()),
            csr: Some(indices),
        })
    }

    /// Makes the smaller of the dense and the sparse form of a two-dimensional tensor.
    ///
    /// Cells equal to `pad` are left out of the sparse form, which is chosen only if it needs
    /// fewer numbers in all and is not too large for [`sparse`](Self::sparse).
    ///
    /// # Errors
    /// If the shape does not have as many cells as there are values.
    pub fn compact(
        values: impl Into<TensorValues>,
        shape: [usize; 2],
        pad: i64,
    ) -> Result<Self, InvalidInput> {
        let dense = Self::with_shape(values, shape)?;
        let [rows, columns] = shape;
        let listed: Vec<usize> = match &dense.values {
            TensorValues::F32(values) => csr::listed_cells(values, pad as f32),
            TensorValues::I64(values) => csr::listed_cells(values, pad),
        };
        let cells = rows * columns;
        if cells > Self::MAX_SPARSE_CELLS || rows + 1 + 2 * listed.len() >= cells {
            return Ok(dense);
        }
        let values = match &dense.values {
            TensorValues::F32(values) => csr::pick(values, &listed).into(),
            TensorValues::I64(values) => csr::pick(values, &listed).into(),
        };
        Ok(Self {
            values,
            shape: dense.shape,
            csr: Some(csr::of_cells(&listed, shape)),
        })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.values.dtype()
    }

    /// Returns the stated shape; `None` means one-dimensional.
    pub fn shape(&self) -> Option<&[usize]> {
        self.shape.as_deref()
    }

    /// Returns the number of dimensions, counting a tensor without a shape as a vector.
    pub fn rank(&self) -> usize {
        self.shape.as_ref().map_or(1, Vec::len)
    }

    /// Returns the size of the first dimension; a scalar counts as 1.
    pub fn rows(&self) -> usize {
        match &self.shape {
            Some(shape) => shape.first().copied().unwrap_or(1),
            None => self.values.len(),
        }
    }

    /// Returns the stored values: all cells of a dense tensor, the listed ones of a sparse one.
    pub fn values(&self) -> &TensorValues {
        &self.values
    }

    /// Returns the stored values, giving up the shape.
    pub fn into_values(self) -> TensorValues {
        self.values
    }

    /// Returns the indices if the tensor is sparse.
    pub fn csr(&self) -> Option<&CsrIndices> {
        self.csr.as_ref()
    }

    /// Returns whether the tensor is sparse.
    pub fn is_sparse(&self) -> bool {
        self.csr.is_some()
    }

    /// Borrows the values of a dense `float32` tensor.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.values {
            TensorValues::F32(values) if !self.is_sparse() => Some(values),
            _ => None,
        }
    }

    /// Borrows the values of a dense `int64` tensor.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match &self.values {
            TensorValues::I64(values) if !self.is_sparse() => Some(values),
            _ => None,
        }
    }

    /// Returns a dense form with `pad` in every cell that a sparse tensor does not list.
    ///
    /// A dense tensor is returned as it is.
    #[must_use]
    pub fn into_dense(self, pad: i64) -> Self {
        let (Some(csr), Some(shape)) = (&self.csr, &self.shape) else {
            return self;
        };
        let values = match &self.values {
            TensorValues::F32(values) => csr::scatter(values, csr, shape, pad as f32).into(),
            TensorValues::I64(values) => csr::scatter(values, csr, shape, pad).into(),
        };
        Self {
            values,
            shape: self.shape,
            csr: None,
        }
    }
}

impl From<Vec<f32>> for TensorData {
    fn from(values: Vec<f32>) -> Self {
        let shape = Some(vec![values.len()]);
        Self {
            values: values.into(),
            shape,
            csr: None,
        }
    }
}

impl From<Vec<i64>> for TensorData {
    fn from(values: Vec<i64>) -> Self {
        let shape = Some(vec![values.len()]);
        Self {
            values: values.into(),
            shape,
            csr: None,
        }
    }
}

impl From<&[f32]> for TensorData {
    fn from(values: &[f32]) -> Self {
        values.to_vec().into()
    }
}

impl From<&[i64]> for TensorData {
    fn from(values: &[i64]) -> Self {
        values.to_vec().into()
    }
}

/// Multiplies the sizes, each of which must fit in the signed integer that it travels as.
fn cell_count(shape: &[usize]) -> Result<usize, InvalidInput> {
    shape
        .iter()
        .try_fold(1_usize, |cells, size| {
            i64::try_from(*size).ok()?;
            cells.checked_mul(*size)
        })
        .ok_or_else(|| {
            InvalidInput::new(
                "shape",
                format_args!("{shape:?}"),
                "a size that fits in memory",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_chooses_csr_only_when_it_is_smaller() {
        let mostly_pad = TensorData::compact(vec![0_i64, 0, 0, 0, 0, 0, 0, 9], [2, 4], 0).unwrap();
        assert_eq!(
            mostly_pad.csr(),
            Some(&CsrIndices {
                crow: vec![0, 0, 1],
                col: vec![3]
            })
        );
        let full = TensorData::compact(vec![1_i64, 2, 3, 4], [2, 2], 0).unwrap();
        assert!(!full.is_sparse());
        assert_eq!(
            mostly_pad.into_dense(0).as_i64(),
            Some(&[0, 0, 0, 0, 0, 0, 0, 9][..]),
            "and it comes back the same"
        );
    }

    #[test]
    fn a_shape_whose_size_overflows_is_refused() {
        assert!(TensorData::with_shape(vec![1.0_f32], [usize::MAX, 2]).is_err());
        let no_size_at_all = TensorData::with_shape(Vec::<f32>::new(), [usize::MAX, 0]);
        assert_eq!(no_size_at_all.unwrap_err().field(), "shape");
    }
}
