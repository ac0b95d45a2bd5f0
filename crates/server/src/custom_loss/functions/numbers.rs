//! Python's `math`, on numbers such as sizes.
//!
//! PyTorch would take a tensor here too, and lose its gradient without a word; here it is refused.

use super::{Call, Function, Result, function};
use crate::custom_loss::value::{Number, Value};
use tinkrs_autodiff::Error;

pub(super) const TABLE: &[Function] = &[
    function("n", "exp", "x", |c| c.calculated(f64::exp)),
    function("n", "expm1", "x", |c| c.calculated(f64::exp_m1)),
    function("n", "log", "x base?", |c| match c.number(1)? {
        None => c.calculated(f64::ln),
        Some(base) => c.calculated(|x| x.ln() / base.ln()),
    }),
    function("n", "log2", "x", |c| c.calculated(f64::log2)),
    function("n", "log10", "x", |c| c.calculated(f64::log10)),
    function("n", "log1p", "x", |c| c.calculated(f64::ln_1p)),
    function("n", "sqrt", "x", |c| c.calculated(f64::sqrt)),
    function("n", "fabs", "x", |c| c.calculated(f64::abs)),
    function("n", "sin", "x", |c| c.calculated(f64::sin)),
    function("n", "cos", "x", |c| c.calculated(f64::cos)),
    function("n", "tanh", "x", |c| c.calculated(f64::tanh)),
    function("n", "pow", "x y", |c| {
        let y = c.scalar(1)?;
        c.calculated(|x| x.powf(y))
    }),
    function("n", "floor", "x", |c| c.rounded(f64::floor)),
    function("n", "ceil", "x", |c| c.rounded(f64::ceil)),
];

impl Call<'_> {
    fn scalar(&self, index: usize) -> Result<f64> {
        match self.number(index) {
            Ok(Some(x)) => Ok(x),
            _ => self.wrong(index, "a number; for a tensor, use the function of torch"),
        }
    }

    fn calculated(&mut self, function: impl Fn(f64) -> f64) -> Result {
        let x = self.scalar(0)?;
        let y = function(x);
        if y.is_nan() && !x.is_nan() {
            Err(Error::Size(format!("{x} is outside its domain")))
        } else {
            Ok(Value::Number(Number::Float(y)))
        }
    }

    fn rounded(&mut self, function: impl Fn(f64) -> f64) -> Result {
        let rounded = function(self.scalar(0)?);
        if rounded.abs() < 2_f64.powi(53) {
            Ok(Value::Number(Number::Int(rounded as i64)))
        } else {
            Err(Error::Size(format!("{rounded} is not a whole number")))
        }
    }
}
