//! The result of a forward or forward-backward pass.
//!
//! Outputs of many datums are kept as they travel: one flat vector a field, with offsets. A
//! batch of a thousand sequences is a handful of allocations, not thousands.

use crate::InvalidInput;
use crate::tensor::TensorValues;
use std::collections::BTreeMap;
use std::ops::Range;

/// Named numbers about a pass; the part of a name behind `:` says how to combine them.
pub type Metrics = BTreeMap<String, f64>;

/// The same-named output of several datums, joined.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchedTensor {
    values: TensorValues,
    offsets: Vec<usize>,
    trailing_shape: Vec<usize>,
}

impl BatchedTensor {
    /// Joins values with the positions where each datum starts, and the end.
    ///
    /// # Errors
    /// If the offsets do not rise from 0 to the number of values, or a datum's part is not a
    /// whole number of rows of `trailing_shape`.
    pub fn new(
        values: impl Into<TensorValues>,
        offsets: Vec<usize>,
        trailing_shape: Vec<usize>,
    ) -> Result<Self, InvalidInput> {
        let values = values.into();
        let row = trailing_shape
            .iter()
            .try_fold(1_usize, |cells, size| cells.checked_mul(*size));
        let rises = offsets.first() == Some(&0)
            && offsets.last() == Some(&values.len())
            && offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if !rises {
            let allowed = format!("rising from 0 to {}, the number of values", values.len());
            return Err(InvalidInput::new("offsets", "other positions", allowed));
        }
        let whole_rows = |row: usize| {
            offsets.windows(2).all(|pair| {
                let cells = pair[1] - pair[0];
                cells == 0 || (row != 0 && cells % row == 0)
            })
        };
        if !row.is_some_and(whole_rows) {
            let found = format!("{trailing_shape:?}");
            return Err(InvalidInput::new(
                "trailing_shape",
                found,
                "one that divides each datum's values",
            ));
        }
        Ok(Self {
            values,
            offsets,
            trailing_shape,
        })
    }

    /// Joins one vector of `float32` values for each datum.
    pub fn from_datums<'a>(datums: impl IntoIterator<Item = &'a [f32]>) -> Self {
        let (mut values, mut offsets) = (Vec::new(), vec![0]);
        for datum in datums {
            values.extend_from_slice(datum);
            offsets.push(values.len());
        }
        Self {
            values: values.into(),
            offsets,
            trailing_shape: Vec::new(),
        }
    }

    /// Takes values, offsets and trailing shape out.
    pub fn into_parts(self) -> (TensorValues, Vec<usize>, Vec<usize>) {
        (self.values, self.offsets, self.trailing_shape)
    }

    /// Returns the number of datums.
    pub fn datums(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the values of all datums.
    pub fn values(&self) -> &TensorValues {
        &self.values
    }

    /// Returns where each datum starts in the values, and the end.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Returns the dimensions behind the first one.
    pub fn trailing_shape(&self) -> &[usize] {
        &self.trailing_shape
    }

    /// Returns where one datum's part lies in the values; `None` if there is no such datum.
    fn part(&self, datum: usize) -> Option<Range<usize>> {
        let (start, end) = (datum, datum.checked_add(1)?);
        Some(*self.offsets.get(start)?..*self.offsets.get(end)?)
    }

    /// Returns the shape of one datum's part; `None` if there is no such datum.
    pub fn shape(&self, datum: usize) -> Option<Vec<usize>> {
        let cells = self.part(datum)?.len();
        let row: usize = self.trailing_shape.iter().product();
        let rows = cells.checked_div(row).unwrap_or(0);
        Some([&[rows], self.trailing_shape.as_slice()].concat())
    }

    /// Borrows one datum's `float32` values; `None` if there is no such datum or type.
    pub fn f32(&self, datum: usize) -> Option<&[f32]> {
        match &self.values {
            TensorValues::F32(values) => values.get(self.part(datum)?),
            TensorValues::I64(_) => None,
        }
    }

    /// Borrows one datum's `int64` values; `None` if there is no such datum or type.
    pub fn i64(&self, datum: usize) -> Option<&[i64]> {
        match &self.values {
            TensorValues::I64(values) => values.get(self.part(datum)?),
            TensorValues::F32(_) => None,
        }
    }
}

/// The outputs of a run of datums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputRecord {
    datums: usize,
    fields: BTreeMap<String, BatchedTensor>,
}

impl OutputRecord {
    /// The most datums of a record. Without fields nothing else bounds what a server claims,
    /// and readers loop over the datums.
    pub const MAX_DATUMS: usize = 1 << 24;

    /// Groups the outputs of `datums` datums.
    ///
    /// # Errors
    /// If a field covers another number of datums, or there are more than
    /// [`MAX_DATUMS`](Self::MAX_DATUMS).
    pub fn new(
        datums: usize,
        fields: BTreeMap<String, BatchedTensor>,
    ) -> Result<Self, InvalidInput> {
        if datums > Self::MAX_DATUMS {
            let allowed = format!("at most {}", Self::MAX_DATUMS);
            return Err(InvalidInput::new("num_datums", datums, allowed));
        }
        match fields.iter().find(|(_, field)| field.datums() != datums) {
            None => Ok(Self { datums, fields }),
            Some((name, field)) => Err(InvalidInput::new(
                name.clone(),
                format_args!("{} datums", field.datums()),
                format!("{datums}, as many as the record has"),
            )),
        }
    }

    /// Returns the number of datums.
    pub fn datums(&self) -> usize {
        self.datums
    }

    /// Takes the outputs out.
    pub fn into_fields(self) -> BTreeMap<String, BatchedTensor> {
        self.fields
    }

    /// Returns the outputs by name.
    pub fn fields(&self) -> &BTreeMap<String, BatchedTensor> {
        &self.fields
    }
}

/// The result of a forward or forward-backward pass.
///
/// ```
/// use std::collections::BTreeMap;
/// use tinkrs_types::training::{BatchedTensor, OutputRecord};
/// use tinkrs_types::ForwardBackwardOutput;
///
/// let logprobs = BatchedTensor::from_datums([&[-1.0][..], &[-2.0, -3.0]]);
/// let record = OutputRecord::new(2, BTreeMap::from([("logprobs".to_owned(), logprobs)]))?;
/// let metrics = BTreeMap::from([("loss:sum".to_owned(), 6.0)]);
/// let output = ForwardBackwardOutput::new("TorchLossReturn", vec![record], metrics);
/// assert_eq!(output.logprobs(1), Some(&[-2.0, -3.0][..]));
/// assert_eq!(output.loss(), Some(6.0));
/// # Ok::<(), tinkrs_types::InvalidInput>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ForwardBackwardOutput {
    /// The server's name for the kind of output; informational.
    pub output_type: String,
    /// The outputs in the order of the datums, in one or more runs.
    pub records: Vec<OutputRecord>,
    /// Numbers about the pass.
    pub metrics: Metrics,
}

impl ForwardBackwardOutput {
    /// Makes a result.
    pub fn new(
        output_type: impl Into<String>,
        records: Vec<OutputRecord>,
        metrics: Metrics,
    ) -> Self {
        Self {
            output_type: output_type.into(),
            records,
            metrics,
        }
    }

    /// Returns the number of datums.
    pub fn datums(&self) -> usize {
        self.records.iter().map(OutputRecord::datums).sum()
    }

    /// Returns the log-probabilities of one datum's targets.
    pub fn logprobs(&self, datum: usize) -> Option<&[f32]> {
        let (field, index) = self.field(datum, "logprobs")?;
        field.f32(index)
    }

    /// Returns the named output of a datum: the joined tensor and the datum's place in it.
    pub fn field(&self, mut datum: usize, name: &str) -> Option<(&BatchedTensor, usize)> {
        for record in &self.records {
            if datum < record.datums {
                return Some((record.fields.get(name)?, datum));
            }
            datum -= record.datums;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datum_is_found_across_records() {
        let record = |values: &[&[f32]]| {
            let field = BatchedTensor::from_datums(values.iter().copied());
            OutputRecord::new(
                values.len(),
                BTreeMap::from([("logprobs".to_owned(), field)]),
            )
            .unwrap()
        };
        let output = ForwardBackwardOutput {
            records: vec![
                record(&[&[1.0], &[2.0]]),
                OutputRecord::default(),
                record(&[&[3.0, 4.0]]),
            ],
            ..ForwardBackwardOutput::default()
        };
        assert_eq!(output.datums(), 3);
        assert_eq!(output.logprobs(1), Some(&[2.0][..]));
        assert_eq!(output.logprobs(2), Some(&[3.0, 4.0][..]));
        assert_eq!(output.logprobs(3), None);
    }

    #[test]
    fn a_datum_that_is_not_there_has_no_values_and_no_shape() {
        let floats = BatchedTensor::from_datums([&[1.0][..]]);
        let ints = BatchedTensor::new(vec![1_i64], vec![0, 1], vec![]).unwrap();
        for datum in [1, 2, 3, usize::MAX] {
            assert_eq!(floats.f32(datum), None);
            assert_eq!(ints.i64(datum), None);
            assert_eq!(floats.shape(datum), None);
        }
    }

    #[test]
    fn a_record_claims_no_more_datums_than_a_reader_can_visit() {
        assert!(OutputRecord::new(OutputRecord::MAX_DATUMS, BTreeMap::new()).is_ok());
        assert!(OutputRecord::new(OutputRecord::MAX_DATUMS + 1, BTreeMap::new()).is_err());
    }

    #[test]
    fn offsets_and_rows_must_fit_the_values() {
        let make = |offsets: &[usize], trailing: &[usize]| {
            BatchedTensor::new(vec![0.0_f32; 6], offsets.to_vec(), trailing.to_vec())
        };
        assert_eq!(make(&[0, 2, 6], &[2]).unwrap().shape(1), Some(vec![2, 2]));
        for (offsets, trailing) in [
            (&[][..], &[][..]),
            (&[1, 6], &[]),
            (&[0, 5], &[]),
            (&[0, 7, 6], &[]),
            (&[0, 3, 6], &[2]),
            (&[0, 6], &[0]),
            (&[0, 6], &[usize::MAX, 2]),
        ] {
            assert!(make(offsets, trailing).is_err(), "{offsets:?} {trailing:?}");
        }
    }

    #[test]
    fn a_record_whose_field_misses_a_datum_is_refused() {
        let field = BatchedTensor::from_datums([&[1.0][..]]);
        assert!(OutputRecord::new(2, BTreeMap::from([("logprobs".to_owned(), field)])).is_err());
    }
}
