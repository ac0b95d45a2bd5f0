//! The numbers behind a variable: a scalar, a vector or a matrix of doubles.
//!
//! Log-probabilities travel in single precision, but losses sum thousands of them and take
//! differences of the sums. Doubles cost nothing next to the two passes over the network that a
//! custom loss takes, and they let gradients be checked against finite differences.

use std::fmt;
use tinkrs_types::tensor::TensorValues;
use tinkrs_types::{InvalidInput, TensorData};

/// The shape of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One number.
    Scalar,
    /// So many numbers: `[T]`.
    Vector(usize),
    /// So many rows and columns: `[T, K]`.
    Matrix(usize, usize),
}

impl Shape {
    /// Returns the number of dimensions.
    pub fn rank(self) -> u8 {
        match self {
            Self::Scalar => 0,
            Self::Vector(_) => 1,
            Self::Matrix(..) => 2,
        }
    }

    /// Returns the number of elements.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Scalar => 1,
            Self::Vector(length) => length,
            Self::Matrix(rows, columns) => rows * columns,
        }
    }

    /// Returns the size of the last dimension; a scalar counts as 1.
    pub(super) fn columns(self) -> usize {
        match self {
            Self::Scalar => 1,
            Self::Vector(length) => length,
            Self::Matrix(_, columns) => columns,
        }
    }

    fn from_dimensions(dimensions: &[usize]) -> Result<Self, InvalidInput> {
        match *dimensions {
            [] => Ok(Self::Scalar),
            [length] => Ok(Self::Vector(length)),
            [rows, columns] => Ok(Self::Matrix(rows, columns)),
            _ => Err(InvalidInput::new(
                "shape",
                format_args!("{} dimensions", dimensions.len()),
                "at most 2",
            )),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar => f.write_str("[]"),
            Self::Vector(length) => write!(f, "[{length}]"),
            Self::Matrix(rows, columns) => write!(f, "[{rows}, {columns}]"),
        }
    }
}

/// Numbers in a shape, row-major.
///
/// ```
/// use tinkrs::autodiff::{Shape, Tensor};
///
/// let weights = Tensor::from(vec![0.5, 1.0]);
/// assert_eq!(weights.shape(), Shape::Vector(2));
/// let mask = Tensor::from(&[true, false][..]);
/// assert_eq!(mask.values(), [1.0, 0.0]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Shape,
    values: Vec<f64>,
}

impl Tensor {
    /// Puts numbers into a shape.
    ///
    /// # Errors
    /// If the shape does not have as many elements as there are numbers.
    pub fn new(shape: Shape, values: Vec<f64>) -> Result<Self, InvalidInput> {
        let cells = match shape {
            Shape::Matrix(rows, columns) => rows.checked_mul(columns),
            Shape::Scalar | Shape::Vector(_) => Some(shape.len()),
        };
        if cells != Some(values.len()) {
            return Err(InvalidInput::new(
                "shape",
                shape,
                format!(
                    "one of {} elements, as many as there are values",
                    values.len()
                ),
            ));
        }
        Ok(Self { shape, values })
    }

    /// Makes a tensor of values known to fill `shape`.
    pub(super) fn filled(shape: Shape, values: Vec<f64>) -> Self {
        debug_assert_eq!(shape.len(), values.len());
        Self { shape, values }
    }

    /// Hands the numbers to the numeric tape.
    pub(super) fn into_numeric(self) -> tinkrs_autodiff::Tensor {
        let sizes = match self.shape {
            Shape::Scalar => Vec::new(),
            Shape::Vector(length) => vec![length],
            Shape::Matrix(rows, columns) => vec![rows, columns],
        };
        tinkrs_autodiff::Tensor::new(sizes, self.values, tinkrs_autodiff::Dtype::Float)
    }

    /// Returns the shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the numbers, row by row.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Takes the numbers out.
    pub fn into_values(self) -> Vec<f64> {
        self.values
    }
}

impl From<f64> for Tensor {
    fn from(value: f64) -> Self {
        Self::filled(Shape::Scalar, vec![value])
    }
}

impl From<Vec<f64>> for Tensor {
    fn from(values: Vec<f64>) -> Self {
        Self::filled(Shape::Vector(values.len()), values)
    }
}

impl From<&[f64]> for Tensor {
    fn from(values: &[f64]) -> Self {
        values.to_vec().into()
    }
}

impl From<&[f32]> for Tensor {
    fn from(values: &[f32]) -> Self {
        let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        values.into()
    }
}

impl From<&[bool]> for Tensor {
    fn from(values: &[bool]) -> Self {
        let values: Vec<f64> = values.iter().map(|set| f64::from(u8::from(*set))).collect();
        values.into()
    }
}

impl TryFrom<&TensorData> for Tensor {
    type Error = InvalidInput;

    /// Reads a tensor of a datum; the cells that a sparse one does not list are 0.
    fn try_from(tensor: &TensorData) -> Result<Self, InvalidInput> {
        if tensor.is_sparse() {
            return Self::try_from(&tensor.clone().into_dense(0));
        }
        let values: Vec<f64> = match tensor.values() {
            TensorValues::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            TensorValues::I64(values) => values.iter().map(|value| *value as f64).collect(),
        };
        match tensor.shape() {
            None => Ok(values.into()),
            Some(dimensions) => Self::new(Shape::from_dimensions(dimensions)?, values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_a_datum_keep_their_shape() {
        let scalar = TensorData::with_shape(vec![2.5_f32], []).unwrap();
        let sparse = TensorData::compact(vec![0_i64, 0, 0, 0, 0, 0, 0, 7], [1, 8], 0).unwrap();
        assert!(sparse.is_sparse());
        let cases = [
            (scalar, Shape::Scalar, vec![2.5]),
            (vec![1_i64, 2].into(), Shape::Vector(2), vec![1.0, 2.0]),
            (
                TensorData::without_shape(vec![1.5_f32]),
                Shape::Vector(1),
                vec![1.5],
            ),
            (
                sparse,
                Shape::Matrix(1, 8),
                vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0],
            ),
        ];
        for (data, shape, values) in cases {
            let tensor = Tensor::try_from(&data).unwrap();
            assert_eq!((tensor.shape(), tensor.values()), (shape, &values[..]));
        }
        let cube = TensorData::with_shape(vec![0.0_f32; 8], [2, 2, 2]).unwrap();
        assert!(Tensor::try_from(&cube).is_err());
    }

    #[test]
    fn a_shape_that_the_values_do_not_fill_is_refused() {
        for shape in [
            Shape::Scalar,
            Shape::Vector(3),
            Shape::Matrix(2, 2),
            Shape::Matrix(usize::MAX, 2),
        ] {
            assert!(Tensor::new(shape, vec![0.0; 2]).is_err(), "{shape}");
        }
        Tensor::new(Shape::Matrix(1, 2), vec![0.0; 2]).unwrap();
    }
}
