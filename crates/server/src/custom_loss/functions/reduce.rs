//! Functions that make fewer numbers of many.

use super::{Call, Function, Result, function};
use crate::custom_loss::value::{Number, Value};
use tinkrs_autodiff::{Binary, Dtype, Error, Id, Lines, Tape, Tensor, Unary};

pub(super) const TABLE: &[Function] = &[
    function("tm", "sum", "input dim|axis? keepdim? dtype? out!", |c| {
        let sum = c.reduced(Tape::sum_along)?;
        c.with_dtype(sum, 3)
    }),
    function("tm", "mean", "input dim|axis? keepdim? dtype? out!", |c| {
        let x = c.tensor(0)?;
        if c.tape.dtype(x) != Dtype::Float && c.dtype(3)?.is_none() {
            let reason = "whole numbers have no mean: call .float() first";
            return Err(Error::Kind(reason.to_owned()));
        }
        c.reduced(Tape::mean_along).map(Value::Tensor)
    }),
    function("tm", "amax", "input dim? keepdim? out!", |c| {
        c.reduced(|t, x, axes, keep| t.extreme(x, axes, keep, 1.0))
            .map(Value::Tensor)
    }),
    function("tm", "amin", "input dim? keepdim? out!", |c| {
        c.reduced(|t, x, axes, keep| t.extreme(x, axes, keep, -1.0))
            .map(Value::Tensor)
    }),
    function("tm", "max", "input dim|other? keepdim? out!", |c| {
        c.extreme(1.0)
    }),
    function("tm", "min", "input dim|other? keepdim? out!", |c| {
        c.extreme(-1.0)
    }),
    function("tm", "argmax", "input dim? keepdim!", |c| {
        c.arg_extreme(1.0)
    }),
    function("tm", "argmin", "input dim? keepdim!", |c| {
        c.arg_extreme(-1.0)
    }),
    function(
        "tm",
        "std",
        "input dim|unbiased? unbiased|correction? keepdim? out!",
        |c| {
            let variance = variance(c)?;
            root(c, variance)
        },
    ),
    function(
        "tm",
        "var",
        "input dim|unbiased? unbiased|correction? keepdim? out!",
        |c| variance(c).map(Value::Tensor),
    ),
    function("tms", "logsumexp", "input dim keepdim? out!", |c| {
        c.reduced(Tape::logsumexp_along).map(Value::Tensor)
    }),
    function("tmf", "softmax", "input dim _stacklevel? dtype?", |c| {
        let (x, normalizer) = c.normalized()?;
        let logarithm = c.tape.binary(Binary::Sub, x, normalizer)?;
        c.tape.unary(Unary::Exp, logarithm).map(Value::Tensor)
    }),
    function(
        "tmfs",
        "log_softmax",
        "input dim _stacklevel? dtype?",
        |c| {
            let (x, normalizer) = c.normalized()?;
            c.tape.binary(Binary::Sub, x, normalizer).map(Value::Tensor)
        },
    ),
    function("tm", "norm", "input p? dim? keepdim? out! dtype!", |c| {
        norm(c, 1)
    }),
    function(
        "l",
        "norm vector_norm",
        "input ord|p? dim? keepdim? out! dtype!",
        |c| norm(c, 1),
    ),
    function("tm", "cumsum", "input dim dtype! out!", |c| {
        let x = c.tensor(0)?;
        let axis = c.axis(1, c.rank(x))?.unwrap_or(0);
        let lines = Lines::new(c.tape.shape(x), axis);
        c.tape.cumulate(x, lines).map(Value::Tensor)
    }),
    function("tm", "all", "input", |c| {
        c.truth_of_all(|values| values.iter().all(|x| *x != 0.0))
    }),
    function("tm", "any", "input", |c| {
        c.truth_of_all(|values| values.iter().any(|x| *x != 0.0))
    }),
    function("tm", "count_nonzero", "input", |c| {
        let x = c.tensor(0)?;
        let set = c
            .tape
            .map(x, Dtype::Bool, |x| f64::from(u8::from(x != 0.0)))?;
        c.tape.sum(set).map(Value::Tensor)
    }),
    function("otm", "matmul dot mv mm inner", "input other out!", matmul),
];

/// A way to reduce some axes of a tensor, keeping them with size 1 or not.
type Reduction = fn(&mut Tape, Id, &[usize], bool) -> Result<Id>;

impl Call<'_> {
    /// Reduces the first argument along the axes of the second; the third says whether to keep them.
    fn reduced(&mut self, reduction: Reduction) -> Result<Id> {
        let x = self.tensor(0)?;
        let axes = self.axes(1, self.rank(x))?;
        let keep = self.flag(2)?;
        reduction(self.tape, x, &axes, keep)
    }

    fn with_dtype(&mut self, x: Id, index: usize) -> Result {
        match self.dtype(index)? {
            None => Ok(Value::Tensor(x)),
            Some(dtype) => self.tape.cast(x, dtype).map(Value::Tensor),
        }
    }

    /// `max(x)`, `max(x, y)`, or `max(x, dim)`, which is a pair of values and their places.
    fn extreme(&mut self, sign: f64) -> Result {
        let x = self.tensor(0)?;
        match self.value(1) {
            None => {
                let axes: Vec<_> = (0..self.rank(x)).collect();
                let extreme = self.tape.extreme(x, &axes, false, sign);
                extreme.map(Value::Tensor)
            }
            Some(Value::Tensor(_)) if sign > 0.0 => self.binary(Binary::Maximum),
            Some(Value::Tensor(_)) => self.binary(Binary::Minimum),
            Some(_) => {
                let axis = self.axis(1, self.rank(x))?.unwrap_or(0);
                let lines = Lines::new(self.tape.shape(x), axis);
                let cells = self.tape.best_cells(x, lines, sign)?;
                let mut shape = self.tape.shape(x).to_vec();
                match self.flag(2)? {
                    _ if shape.is_empty() => {}
                    true => shape[axis] = 1,
                    false => drop(shape.remove(axis)),
                }
                let places = self.places(&cells, lines, shape.clone())?;
                let values = self.tape.take(x, cells, shape)?;
                Ok(Value::List(vec![
                    Value::Tensor(values),
                    Value::Tensor(places),
                ]))
            }
        }
    }

    fn arg_extreme(&mut self, sign: f64) -> Result {
        let mut x = self.tensor(0)?;
        let mut axis = self.axis(1, self.rank(x))?;
        if axis.is_none() {
            let count = self.tape.tensor(x).len();
            x = self.tape.reshape(x, vec![count])?;
            axis = Some(0);
        }
        let axis = axis.unwrap_or(0);
        let lines = Lines::new(self.tape.shape(x), axis);
        let cells = self.tape.best_cells(x, lines, sign)?;
        let mut shape = self.tape.shape(x).to_vec();
        if !shape.is_empty() {
            shape.remove(axis);
        }
        self.places(&cells, lines, shape).map(Value::Tensor)
    }

    /// Where along their lines cells lie.
    fn places(&mut self, cells: &[u32], lines: Lines, shape: Vec<usize>) -> Result<Id> {
        let step = |cell: &u32| (*cell as usize / lines.inner % lines.length) as f64;
        let values = cells.iter().map(step).collect();
        let places = Tensor::new(shape, values, Dtype::Int);
        self.tape.constant(places)
    }

    /// Returns the first argument and its logsumexp along the axis of the second.
    fn normalized(&mut self) -> Result<(Id, Id)> {
        let x = self.tensor(0)?;
        let axes = self.axes(1, self.rank(x))?;
        let normalizer = self.tape.logsumexp_along(x, &axes, true)?;
        Ok((x, normalizer))
    }

    fn truth_of_all(&mut self, holds: fn(&[f64]) -> bool) -> Result {
        let x = self.tensor(0)?;
        let truth = Number::Bool(holds(&self.tape.tensor(x).values));
        self.tape.constant(truth.tensor()).map(Value::Tensor)
    }

    /// Averages or adds a loss over elements, as its parameter `reduction` says.
    pub(super) fn reduced_as(&mut self, loss: Id, reduction: usize) -> Result {
        let axes: Vec<_> = (0..self.rank(loss)).collect();
        match self.text(reduction)? {
            Some("none") => Ok(loss),
            Some("sum") => self.tape.sum(loss),
            None | Some("mean") => self.tape.mean_along(loss, &axes, false),
            Some("batchmean") => {
                let batch = self.tape.shape(loss).first().copied().unwrap_or(1);
                let sum = self.tape.sum(loss)?;
                self.tape.divided(sum, batch as f64)
            }
            Some(_) => self.wrong(reduction, "none, mean or sum"),
        }
        .map(Value::Tensor)
    }
}

/// `Σ (x − mean)² / (n − correction)`.
fn variance(c: &mut Call<'_>) -> Result<Id> {
    let x = c.tensor(0)?;
    let mut correction = 1.0;
    for index in [1, 2] {
        match c.value(index) {
            // `unbiased` is the older name, and a flag: False is a correction of 0.
            Some(Value::Number(Number::Bool(unbiased))) => {
                correction = f64::from(u8::from(*unbiased));
                c.arguments[index] = None;
            }
            Some(Value::Number(number)) if index == 2 => correction = number.float(),
            _ => {}
        }
    }
    let axes = c.axes(1, c.rank(x))?;
    let keep = c.flag(3)?;
    let mean = c.tape.mean_along(x, &axes, true)?;
    let off = c.tape.binary(Binary::Sub, x, mean)?;
    let squares = c.tape.unary(Unary::Pow(2.0), off)?;
    let count = c.tape.count(x, &axes);
    let sum = c.tape.sum_along(squares, &axes, keep)?;
    c.tape.divided(sum, (count - correction).max(0.0))
}

/// `(Σ |x|ᵖ)^(1/p)` for `p` of 1, 2 (the default) or infinity.
fn norm(c: &mut Call<'_>, p: usize) -> Result {
    let x = c.tensor(0)?;
    let axes = c.axes(2, c.rank(x))?;
    let keep = c.flag(3)?;
    let p = match c.value(p) {
        Some(Value::Text(name)) if name == "fro" => 2.0,
        _ => c.number(p)?.unwrap_or(2.0),
    };
    if p == 1.0 || p == f64::INFINITY {
        let sizes = c.tape.unary(Unary::Abs, x)?;
        let norm = if p == 1.0 {
            c.tape.sum_along(sizes, &axes, keep)
        } else {
            c.tape.extreme(sizes, &axes, keep, 1.0)
        };
        return norm.map(Value::Tensor);
    }
    if p != 2.0 {
        return Err(Error::Kind(format!(
            "there is no norm of order {p} here, only 1, 2 and inf"
        )));
    }
    let squares = c.tape.unary(Unary::Pow(2.0), x)?;
    let sum = c.tape.sum_along(squares, &axes, keep)?;
    root(c, sum)
}

/// The square root of a sum of squares. At 0 its gradient is 0, as in PyTorch.
fn root(c: &mut Call<'_>, sum: Id) -> Result {
    let mask = c
        .tape
        .map(sum, Dtype::Bool, |sum| f64::from(u8::from(sum == 0.0)))?;
    let (zero, root) = (c.constant(0.0)?, c.tape.unary(Unary::Sqrt, sum)?);
    c.tape.select(mask, zero, root).map(Value::Tensor)
}

/// Products of vectors and matrices, as sums of products.
fn matmul(c: &mut Call<'_>) -> Result {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    let (left, right) = (c.tape.shape(a).to_vec(), c.tape.shape(b).to_vec());
    let fits = match (left.as_slice(), right.as_slice()) {
        ([n], [m]) | ([_, n], [m]) | ([n], [m, _]) | ([_, n], [m, _]) => n == m,
        _ => {
            let reason = "only vectors and matrices can be multiplied";
            return Err(Error::Kind(reason.to_owned()));
        }
    };
    if !fits {
        let reason = format!("shapes {left:?} and {right:?} cannot be multiplied");
        return Err(Error::Size(reason));
    }
    let products = match right.len() {
        1 => c.tape.binary(Binary::Mul, a, b)?,
        _ => {
            let mut column = left.clone();
            column.push(1);
            let a = c.tape.reshape(a, column)?;
            c.tape.binary(Binary::Mul, a, b)?
        }
    };
    // The dimension that both have is the last one of the left side, with or without a column.
    c.tape
        .sum_along(products, &[left.len() - 1], false)
        .map(Value::Tensor)
}
