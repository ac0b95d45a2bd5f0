//! One tensor as it lies in a file, in whatever format, read row by row.

use std::borrow::Cow;

use super::order::Order;
use super::{Format, TensorView};
use crate::Error;

/// A named tensor in its stored format, quantised or plain, borrowed from its file where possible.
///
/// Rows are in Hugging Face's order, whatever order the file has them in; columns are as the file has them.
#[derive(Clone, Debug)]
pub struct StoredTensor<'a> {
    name: String,
    format: Format,
    shape: Vec<usize>,
    /// Invariant: exactly as many as the shape and the format call for, and rows are whole blocks.
    bytes: Cow<'a, [u8]>,
    rows: Order,
    columns: Order,
}

impl<'a> StoredTensor<'a> {
    /// Puts a tensor together.
    ///
    /// # Errors
    ///
    /// When rows are no whole blocks of the format, or the number of bytes does not fit the shape.
    pub fn new(
        name: impl Into<String>,
        format: Format,
        shape: Vec<usize>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, Error> {
        let (name, bytes) = (name.into(), bytes.into());
        let (elements, size) = format.block();
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(elements) {
            let problem = format!(
                "rows of {row} are no whole blocks of {elements}, as {} has them",
                format.name()
            );
            return Err(Error::malformed(name, problem));
        }
        let count = shape
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size));
        let needed = count.and_then(|count| (count / elements).checked_mul(size));
        if needed != Some(bytes.len()) {
            let problem = format!(
                "shape {shape:?} in {} does not take {} bytes",
                format.name(),
                bytes.len()
            );
            return Err(Error::malformed(name, problem));
        }
        Ok(Self {
            name,
            format,
            shape,
            bytes,
            rows: Order::Same,
            columns: Order::Same,
        })
    }

    /// Says in which order the file has rows and columns.
    pub(crate) fn ordered(mut self, rows: Order, columns: Order) -> Self {
        (self.rows, self.columns) = (rows, columns);
        self
    }

    /// The order of the columns. Blocks of quantised numbers run along a row, so that they cannot be put right here.
    pub(crate) fn columns(&self) -> Order {
        self.columns
    }

    /// Returns the Hugging Face name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the format of the elements.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the size of each axis, slowest first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns all blocks, in the order of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the blocks of one row of a matrix.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        let (elements, size) = self.format.block();
        let inputs = self.shape.last().copied().unwrap_or(1);
        let length = inputs / elements * size;
        let place = self.rows.place(row);
        &self.bytes[place * length..(place + 1) * length]
    }

    /// Widens one row of a matrix.
    pub(crate) fn write_row(&self, row: usize, to: &mut [f32]) {
        self.format.dequantise(self.row(row), to);
    }
}

impl<'a> From<TensorView<'a>> for StoredTensor<'a> {
    fn from(tensor: TensorView<'a>) -> Self {
        let (name, dtype, shape, bytes) = tensor.into_parts();
        Self {
            name,
            format: dtype.into(),
            shape,
            bytes,
            rows: Order::Same,
            columns: Order::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::interleave;

    #[test]
    fn interleaved_rows_are_read_in_hugging_faces_order() {
        let (heads, head_dim) = (2, 4);
        let in_order: Vec<u8> = (0..heads * head_dim)
            .flat_map(|row| [row as u8; 34])
            .collect();
        let rows: Vec<[u8; 34]> = in_order.as_chunks::<34>().0.to_vec();
        let file = interleave(&rows, heads, head_dim).concat();
        let shape = vec![heads * head_dim, 32];
        let tensor = StoredTensor::new("w", Format::Q8_0, shape, file).unwrap();
        let tensor = tensor.ordered(Order::Interleaved(head_dim), Order::Same);
        for (row, expected) in rows.iter().enumerate() {
            assert_eq!(tensor.row(row), expected, "row {row}");
        }
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_refused_by_name() {
        for (shape, bytes, problem) in [
            (vec![2, 48], 102, "rows of 48 are no whole blocks of 32"),
            (vec![2, 32], 67, "[2, 32] in q8_0 does not take 67 bytes"),
            (vec![usize::MAX, 32], 68, "does not take 68 bytes"),
        ] {
            let refused = StoredTensor::new("blk", Format::Q8_0, shape, vec![0; bytes]);
            let message = refused.unwrap_err().to_string();
            assert!(
                message.contains("blk") && message.contains(problem),
                "{message}"
            );
        }
    }
}
