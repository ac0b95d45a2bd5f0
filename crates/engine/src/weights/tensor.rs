//! One tensor as it lies in a file: a name, a shape, and bytes that are not copied until needed.

use std::borrow::Cow;

use half::{bf16, f16};

use crate::Error;

/// A storage format of floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single-precision number.
    Bf16,
}

impl Dtype {
    /// Returns the number of bytes of one element.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// A named tensor in row-major order, little-endian, borrowed from its file where possible.
///
/// Invariant: the bytes are exactly as many as the shape calls for.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> TensorView<'a> {
    /// Puts a tensor together.
    ///
    /// # Errors
    ///
    /// When the number of bytes does not fit the shape.
    pub fn new(
        name: impl Into<String>,
        dtype: Dtype,
        shape: Vec<usize>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, Error> {
        let (name, bytes) = (name.into(), bytes.into());
        let needed = shape
            .iter()
            .try_fold(dtype.size_bytes(), |product, &size| {
                product.checked_mul(size)
            })
            .ok_or_else(|| Error::malformed(&name, format!("shape {shape:?} overflows")))?;
        if needed != bytes.len() {
            return Err(Error::malformed(
                name,
                format!(
                    "shape {shape:?} in {dtype:?} takes {needed} bytes, got {}",
                    bytes.len()
                ),
            ));
        }
        Ok(Self {
            name,
            dtype,
            shape,
            bytes,
        })
    }

    /// Makes a tensor from single-precision values, rounding them to `dtype`.
    ///
    /// # Errors
    ///
    /// When the number of values does not fit the shape.
    pub fn from_f32(
        name: impl Into<String>,
        dtype: Dtype,
        shape: Vec<usize>,
        values: &[f32],
    ) -> Result<Self, Error> {
        let bytes: Vec<u8> = match dtype {
            Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::F16 => values
                .iter()
                .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                .collect(),
            Dtype::Bf16 => values
                .iter()
                .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
                .collect(),
        };
        Self::new(name, dtype, shape, bytes)
    }

    /// Makes a tensor of single-precision values that are not copied.
    pub(crate) fn borrow_f32(
        name: impl Into<String>,
        shape: Vec<usize>,
        values: &'a [f32],
    ) -> Result<Self, Error> {
        if cfg!(target_endian = "little") {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            Self::new(name, Dtype::F32, shape, bytes)
        } else {
            Self::from_f32(name, Dtype::F32, shape, values)
        }
    }

    pub(crate) fn into_parts(self) -> (String, Dtype, Vec<usize>, Cow<'a, [u8]>) {
        (self.name, self.dtype, self.shape, self.bytes)
    }

    /// Gives it another name.
    pub(crate) fn renamed(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Returns the Hugging Face name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the format of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the size of each axis, slowest first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the elements, little-endian in the tensor's own format.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size_bytes()
    }

    /// Returns the tensor unchanged if it has the given shape.
    ///
    /// # Errors
    ///
    /// Names the tensor and both shapes.
    pub fn expect_shape(self, expected: &[usize]) -> Result<Self, Error> {
        if self.shape == expected {
            return Ok(self);
        }
        Err(Error::Shape {
            tensor: self.name,
            expected: expected.to_vec(),
            got: self.shape,
        })
    }

    /// Returns the elements in single precision, which holds all three formats exactly.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        self.write_f32(0, &mut values);
        values
    }

    /// Widens the elements from index `start` on into `out`, for callers that go block by block.
    ///
    /// # Panics
    ///
    /// When the tensor has fewer than `start + out.len()` elements.
    pub fn write_f32(&self, start: usize, out: &mut [f32]) {
        let size = self.dtype.size_bytes();
        let bytes = &self.bytes[start * size..(start + out.len()) * size];
        widen(self.dtype, bytes, out);
    }
}

/// Widens little-endian elements.
pub(crate) fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            let (chunks, _) = bytes.as_chunks::<4>();
            out.iter_mut()
                .zip(chunks)
                .for_each(|(x, &chunk)| *x = f32::from_le_bytes(chunk));
        }
        Dtype::F16 => {
            let (chunks, _) = bytes.as_chunks::<2>();
            out.iter_mut()
                .zip(chunks)
                .for_each(|(x, &chunk)| *x = f16::from_le_bytes(chunk).to_f32());
        }
        Dtype::Bf16 => {
            let (chunks, _) = bytes.as_chunks::<2>();
            out.iter_mut()
                .zip(chunks)
                .for_each(|(x, &chunk)| *x = bf16::from_le_bytes(chunk).to_f32());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_widens_to_the_value_that_was_rounded_into_it() {
        let values = [0.0, -1.5, 0.333_333_34, 65504.0, 1e-7, -0.0];
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let tensor = TensorView::from_f32("t", dtype, vec![2, 3], &values).unwrap();
            let again = TensorView::from_f32("t", dtype, vec![6], &tensor.to_f32()).unwrap();
            assert_eq!(tensor.bytes(), again.bytes(), "{dtype:?}");
            assert_eq!(tensor.elements(), 6);
        }
        let exact = TensorView::from_f32("t", Dtype::F32, vec![6], &values).unwrap();
        assert_eq!(exact.to_f32(), values);
    }

    #[test]
    fn a_part_is_widened_alone() {
        let tensor =
            TensorView::from_f32("t", Dtype::Bf16, vec![4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let mut out = [0.0; 2];
        tensor.write_f32(1, &mut out);
        assert_eq!(out, [2.0, 3.0]);
    }

    #[test]
    fn a_wrong_shape_is_refused_with_both_shapes() {
        let tensor = TensorView::from_f32("norm", Dtype::F32, vec![2, 2], &[0.0; 4]).unwrap();
        let message = tensor.expect_shape(&[4]).unwrap_err().to_string();
        assert_eq!(message, "norm: expected shape [4], got [2, 2]");
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_refused() {
        for shape in [vec![3], vec![], vec![usize::MAX, 2]] {
            assert!(TensorView::new("t", Dtype::F16, shape, vec![0; 4]).is_err());
        }
    }
}
