//! New tensors.

use super::{Call, Function, Result, function};
use crate::custom_loss::value::{Number, Value};
use tinkrs_autodiff::{Dtype, Tensor, size};

pub(super) const TABLE: &[Function] = &[
    function("t", "zeros_like", LIKE, |c| c.like(Some(0.0), 1)),
    function("t", "ones_like", LIKE, |c| c.like(Some(1.0), 1)),
    function(
        "t",
        "full_like",
        "input fill_value dtype? layout? device? requires_grad! memory_format?",
        |c| c.like(None, 2),
    ),
    function("t", "zeros", "*size dtype? device? requires_grad!", |c| {
        c.filled(0.0)
    }),
    function("t", "ones", "*size dtype? device? requires_grad!", |c| {
        c.filled(1.0)
    }),
    function(
        "t",
        "full",
        "size fill_value dtype? device? requires_grad!",
        |c| {
            let (shape, value) = (c.sizes(0)?, c.fill(1)?);
            let dtype = c.dtype(2)?;
            c.full(shape, value, dtype)
        },
    ),
    function("m", "new_zeros", "input *size", |c| c.new_filled(0.0)),
    function("m", "new_ones", "input *size", |c| c.new_filled(1.0)),
    function(
        "m",
        "new_full",
        "input size fill_value dtype? device? requires_grad!",
        |c| {
            let (x, shape, value) = (c.tensor(0)?, c.sizes(1)?, c.fill(2)?);
            let dtype = c.dtype(3)?.unwrap_or(c.tape.dtype(x));
            c.full(shape, value, Some(dtype))
        },
    ),
    function(
        "t",
        "arange",
        "start end? step? dtype? device? requires_grad!",
        arange,
    ),
    function(
        "t",
        "tensor scalar_tensor",
        "data dtype? device? requires_grad!",
        |c| {
            let value = c.fill(0)?;
            let dtype = c.dtype(1)?;
            c.full(Vec::new(), value, dtype)
        },
    ),
];

const LIKE: &str = "input dtype? layout? device? requires_grad! memory_format?";

impl Call<'_> {
    fn like(&mut self, value: Option<f64>, dtype: usize) -> Result {
        let x = self.tensor(0)?;
        let value = match value {
            Some(value) => Number::Float(value),
            None => self.fill(1)?,
        };
        let dtype = self.dtype(dtype)?.unwrap_or(self.tape.dtype(x));
        let shape = self.tape.shape(x).to_vec();
        self.full(shape, value, Some(dtype))
    }

    fn filled(&mut self, value: f64) -> Result {
        let (shape, dtype) = (self.sizes(0)?, self.dtype(1)?);
        self.full(shape, Number::Float(value), dtype)
    }

    fn new_filled(&mut self, value: f64) -> Result {
        let (x, shape) = (self.tensor(0)?, self.sizes(1)?);
        let dtype = self.tape.dtype(x);
        self.full(shape, Number::Float(value), Some(dtype))
    }

    fn fill(&self, index: usize) -> Result<Number> {
        match self.value(index) {
            Some(Value::Number(number)) => Ok(*number),
            _ => self.wrong(index, "a number"),
        }
    }

    fn full(&mut self, shape: Vec<usize>, value: Number, dtype: Option<Dtype>) -> Result {
        self.tape.check_size(size(&shape))?;
        let scalar = value.tensor();
        let values = vec![value.float(); size(&shape)];
        let tensor = self
            .tape
            .constant(Tensor::new(shape, values, scalar.dtype))?;
        self.tape
            .cast(tensor, dtype.unwrap_or(scalar.dtype))
            .map(Value::Tensor)
    }
}

/// `start, start + step, …` below `end`.
fn arange(c: &mut Call<'_>) -> Result {
    let (start, end) = match (c.fill(0)?, c.value(1)) {
        (end, None) => (Number::Int(0), end),
        (start, Some(_)) => (start, c.fill(1)?),
    };
    let step = if c.value(2).is_some() {
        c.fill(2)?
    } else {
        Number::Int(1)
    };
    let is_whole = [start, end, step]
        .iter()
        .all(|number| number.int().is_some());
    let (start, end, step) = (start.float(), end.float(), step.float());
    let count = ((end - start) / step).ceil();
    if !count.is_finite() {
        return c.wrong(2, "a step other than 0");
    }
    let count = count.max(0.0) as usize;
    c.tape.check_size(count)?;
    let values = (0..count)
        .map(|index| start + index as f64 * step)
        .collect();
    let dtype = if is_whole { Dtype::Int } else { Dtype::Float };
    let tensor = c.tape.constant(Tensor::new(vec![count], values, dtype))?;
    let dtype = c.dtype(3)?.unwrap_or(dtype);
    c.tape.cast(tensor, dtype).map(Value::Tensor)
}
