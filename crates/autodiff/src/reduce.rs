//! Reductions along some axes, made of the tape's operations.

use crate::Error;
use crate::element::{Binary, Unary};
use crate::tape::{Id, Tape};
use crate::tensor::{Dtype, Lines, Tensor, strides, walk};

/// The reductions, which build on each other. Reduced axes are kept with size 1, or not.
#[expect(clippy::missing_errors_doc, reason = "as all operations of a tape")]
impl Tape {
    /// Adds along axes.
    pub fn sum_along(&mut self, x: Id, axes: &[usize], keep: bool) -> Result<Id, Error> {
        let shape = self.shape(x).to_vec();
        let kept = |(axis, size): (usize, &usize)| {
            if axes.contains(&axis) {
                keep.then_some(1)
            } else {
                Some(*size)
            }
        };
        let out: Vec<usize> = shape.iter().enumerate().filter_map(kept).collect();
        if axes.len() == shape.len() && !keep {
            return self.sum(x);
        }
        let single: Vec<_> = (0..shape.len())
            .map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] })
            .collect();
        let mut steps = strides(&single);
        axes.iter().for_each(|axis| steps[*axis] = 0);
        self.scatter(x, walk(&shape, &steps), out)
    }

    /// Averages along axes.
    pub fn mean_along(&mut self, x: Id, axes: &[usize], keep: bool) -> Result<Id, Error> {
        let count = self.count(x, axes);
        let sum = self.sum_along(x, axes, keep)?;
        self.divided(sum, count)
    }

    /// Divides as `x / count` does, which multiplying by `1 / count` may round differently.
    pub fn divided(&mut self, x: Id, count: f64) -> Result<Id, Error> {
        let count = self.constant(Tensor::scalar(count, Dtype::Float))?;
        self.binary(Binary::Div, x, count)
    }

    /// Returns how many cells each result along these axes is made of.
    pub fn count(&self, x: Id, axes: &[usize]) -> f64 {
        let shape = self.shape(x);
        axes.iter().map(|axis| shape[*axis] as f64).product()
    }

    /// The largest number, or the smallest for a `sign` of −1. Equal ones share the gradient.
    pub fn extreme(&mut self, x: Id, axes: &[usize], keep: bool, sign: f64) -> Result<Id, Error> {
        let best = self.constant_extreme(x, axes, sign)?;
        let is_best = |x: f64, best: f64| f64::from(u8::from(x == best || x.is_nan()));
        let mask = self.step(x, best, Dtype::Bool, is_best)?;
        let zero = self.constant(Tensor::scalar(0.0, Dtype::Float))?;
        let picked = self.select(mask, x, zero)?;
        let (total, count) = (
            self.sum_along(picked, axes, keep)?,
            self.sum_along(mask, axes, keep)?,
        );
        let dtype = self.dtype(x);
        let extreme = self.binary(Binary::Div, total, count)?;
        self.cast(extreme, dtype)
    }

    /// As `extreme`, with the axes kept and without a gradient.
    fn constant_extreme(&mut self, x: Id, axes: &[usize], sign: f64) -> Result<Id, Error> {
        let mut best = self.detach(x)?;
        for axis in axes {
            let lines = Lines::new(self.shape(best), *axis);
            let cells = self.best_cells(best, lines, sign)?;
            let mut shape = self.shape(best).to_vec();
            shape[*axis] = 1;
            best = self.take(best, cells, shape)?;
        }
        Ok(best)
    }

    /// The cell of the largest number of each line.
    pub fn best_cells(&self, x: Id, lines: Lines, sign: f64) -> Result<Vec<u32>, Error> {
        if lines.length == 0 {
            return Err(Error::Size("there is no largest of no numbers".to_owned()));
        }
        let values = &self.tensor(x).values;
        let best = |line: usize| {
            let mut best = lines.cell(line, 0);
            for step in 1..lines.length {
                let cell = lines.cell(line, step);
                let (new, old) = (values[cell] * sign, values[best] * sign);
                if new > old || (new.is_nan() && !old.is_nan()) {
                    best = cell;
                }
            }
            best as u32
        };
        Ok((0..lines.count()).map(best).collect())
    }

    /// `ln Σ eˣ = m + ln Σ e^(x − m)`, with `m` the largest `x`.
    pub fn logsumexp_along(&mut self, x: Id, axes: &[usize], keep: bool) -> Result<Id, Error> {
        let largest = self.constant_extreme(x, axes, 1.0)?;
        // An infinite `m` would make the difference not-a-number.
        let finite = |m: f64| if m.is_finite() { m } else { 0.0 };
        let shift = self.map(largest, Dtype::Float, finite)?;
        let shifted = self.binary(Binary::Sub, x, shift)?;
        let exponentials = self.unary(Unary::Exp, shifted)?;
        let sum = self.sum_along(exponentials, axes, keep)?;
        let logarithm = self.unary(Unary::Ln, sum)?;
        let shape = self.shape(logarithm).to_vec();
        let shift = self.reshape(shift, shape)?;
        self.binary(Binary::Add, logarithm, shift)
    }
}
