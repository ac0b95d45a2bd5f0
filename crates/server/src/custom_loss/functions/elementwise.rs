//! Functions of each element.

use super::{Call, Function, Result, function};
use crate::custom_loss::value::Value;
use tinkrs_autodiff::{Binary, Dtype, Id, Unary};

pub(super) const TABLE: &[Function] = &[
    function("tm", "exp", "input out!", |c| c.unary(Unary::Exp)),
    function("tms", "expm1", "input out!", |c| c.unary(Unary::ExpM1)),
    function("tms", "exp2", "input out!", |c| {
        let scaled = c.scaled(std::f64::consts::LN_2)?;
        c.tape.unary(Unary::Exp, scaled).map(Value::Tensor)
    }),
    function("tm", "log", "input out!", |c| c.unary(Unary::Ln)),
    function("tms", "log1p", "input out!", |c| c.unary(Unary::Ln1p)),
    function("tm", "log2", "input out!", |c| {
        c.logarithm(std::f64::consts::LN_2)
    }),
    function("tm", "log10", "input out!", |c| {
        c.logarithm(std::f64::consts::LN_10)
    }),
    function("tm", "sqrt", "input out!", |c| c.unary(Unary::Sqrt)),
    function("tm", "rsqrt", "input out!", |c| c.unary(Unary::Pow(-0.5))),
    function("tm", "square", "input out!", |c| c.unary(Unary::Pow(2.0))),
    function("tm", "reciprocal", "input out!", |c| {
        c.unary(Unary::Pow(-1.0))
    }),
    function("tmsf", "sigmoid expit", "input out!", |c| {
        c.unary(Unary::Sigmoid)
    }),
    function("tmf", "tanh", "input out!", |c| c.unary(Unary::Tanh)),
    function("tm", "sin", "input out!", |c| c.unary(Unary::Sin)),
    function("tm", "cos", "input out!", |c| c.unary(Unary::Cos)),
    function("tmf", "relu", "input inplace!", |c| c.unary(Unary::Relu)),
    function("f", "logsigmoid log_sigmoid", "input", |c| {
        c.unary(Unary::LogSigmoid)
    }),
    function("f", "softplus", "input beta? threshold?", softplus),
    function("f", "silu", "input inplace!", |c| {
        let x = c.tensor(0)?;
        let gate = c.tape.unary(Unary::Sigmoid, x)?;
        c.tape.binary(Binary::Mul, x, gate).map(Value::Tensor)
    }),
    function("f", "leaky_relu", "input negative_slope? inplace!", |c| {
        let x = c.tensor(0)?;
        let slope = c.number(1)?.unwrap_or(0.01);
        let below = c.tape.unary(Unary::Scale(slope), x)?;
        c.where_positive(x, x, below)
    }),
    function("f", "elu", "input alpha? inplace!", |c| {
        let x = c.tensor(0)?;
        let alpha = c.number(1)?.unwrap_or(1.0);
        let below = c.tape.unary(Unary::ExpM1, x)?;
        let below = c.tape.unary(Unary::Scale(alpha), below)?;
        c.where_positive(x, x, below)
    }),
    function("f", "hardtanh", "input min_val? max_val? inplace!", |c| {
        let (min, max) = (c.number(1)?.or(Some(-1.0)), c.number(2)?.or(Some(1.0)));
        c.unary(Unary::Clamp { min, max })
    }),
    function("tm", "clamp clip", "input min? max? out!", clamp),
    function("tm", "clamp_min", "input min", clamp),
    function("tm", "clamp_max", "input max", |c| {
        c.arguments.insert(1, None);
        clamp(c)
    }),
    function("tm", "sign sgn", "input out!", |c| {
        // Not `signum`, which has a sign for 0.
        c.step(None, |x| f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)))
    }),
    function("tm", "floor", "input out!", |c| c.step(None, f64::floor)),
    function("tm", "ceil", "input out!", |c| c.step(None, f64::ceil)),
    function("tm", "trunc fix", "input out!", |c| {
        c.step(None, f64::trunc)
    }),
    function("tm", "round", "input out!", |c| {
        c.step(None, f64::round_ties_even)
    }),
    function("tm", "isnan", "input", |c| c.truth(f64::is_nan)),
    function("tm", "isinf", "input", |c| c.truth(f64::is_infinite)),
    function("tm", "isfinite", "input", |c| c.truth(f64::is_finite)),
    function("tm", "logical_not", "input out!", |c| c.truth(|x| x == 0.0)),
    function(
        "tm",
        "nan_to_num",
        "input nan? posinf? neginf? out!",
        nan_to_num,
    ),
    function("tm", "detach", "input", |c| {
        let x = c.tensor(0)?;
        c.tape.detach(x).map(Value::Tensor)
    }),
    function("tm", "clone", "input memory_format?", |c| {
        c.tensor(0).map(Value::Tensor)
    }),
    function("m", "contiguous cpu", "input memory_format?", |c| {
        c.tensor(0).map(Value::Tensor)
    }),
    function("m", "float double", "input memory_format?", |c| {
        c.cast(Dtype::Float)
    }),
    function("m", "long int", "input memory_format?", |c| {
        c.cast(Dtype::Int)
    }),
    function("m", "bool", "input memory_format?", |c| c.cast(Dtype::Bool)),
    function(
        "m",
        "to",
        "input other|dtype|device dtype|device? non_blocking! copy!",
        to,
    ),
    function("m", "type", "input dtype non_blocking!", to),
    function("m", "type_as", "input other", to),
];

impl Call<'_> {
    pub(super) fn unary(&mut self, function: Unary) -> Result {
        let x = self.tensor(0)?;
        self.tape.unary(function, x).map(Value::Tensor)
    }

    fn scaled(&mut self, factor: f64) -> Result<Id> {
        let x = self.tensor(0)?;
        self.tape.unary(Unary::Scale(factor), x)
    }

    fn logarithm(&mut self, base: f64) -> Result {
        let x = self.tensor(0)?;
        let natural = self.tape.unary(Unary::Ln, x)?;
        let scaled = self.tape.unary(Unary::Scale(1.0 / base), natural);
        scaled.map(Value::Tensor)
    }

    /// A function without a slope: its result stops gradients.
    fn step(&mut self, dtype: Option<Dtype>, function: impl Fn(f64) -> f64) -> Result {
        let x = self.tensor(0)?;
        let dtype = dtype.unwrap_or(self.tape.dtype(x));
        self.tape.map(x, dtype, function).map(Value::Tensor)
    }

    fn truth(&mut self, holds: impl Fn(f64) -> bool) -> Result {
        self.step(Some(Dtype::Bool), |x| f64::from(u8::from(holds(x))))
    }

    fn cast(&mut self, dtype: Dtype) -> Result {
        let x = self.tensor(0)?;
        self.tape.cast(x, dtype).map(Value::Tensor)
    }

    fn where_positive(&mut self, x: Id, above: Id, below: Id) -> Result {
        let is_above = |x: f64| f64::from(u8::from(x > 0.0));
        let mask = self.tape.map(x, Dtype::Bool, is_above)?;
        self.tape.select(mask, above, below).map(Value::Tensor)
    }
}

/// `ln(1 + e^(βx)) / β`. PyTorch goes over to `x` above a threshold, to spare itself an overflow that
/// does not happen here; the default one makes no difference that single precision could hold.
fn softplus(c: &mut Call<'_>) -> Result {
    let beta = c.number(1)?.unwrap_or(1.0);
    let scaled = c.scaled(beta)?;
    let soft = c.tape.unary(Unary::Softplus, scaled)?;
    let soft = c.tape.unary(Unary::Scale(1.0 / beta), soft)?;
    let threshold = c.number(2)?.unwrap_or(20.0);
    if threshold >= 20.0 {
        return Ok(Value::Tensor(soft));
    }
    let x = c.tensor(0)?;
    let is_above = |x: f64| f64::from(u8::from(x > threshold));
    let mask = c.tape.map(scaled, Dtype::Bool, is_above)?;
    c.tape.select(mask, x, soft).map(Value::Tensor)
}

fn clamp(c: &mut Call<'_>) -> Result {
    let mut x = c.tensor(0)?;
    let is_tensor = |value: Option<&Value>| matches!(value, Some(Value::Tensor(_)));
    if !is_tensor(c.value(1)) && !is_tensor(c.value(2)) {
        let (min, max) = (c.number(1)?, c.number(2)?);
        let is_whole = |value: Option<&Value>| match value {
            Some(Value::Number(number)) => number.int().is_some(),
            _ => true,
        };
        if c.tape.dtype(x) != Dtype::Float && is_whole(c.value(1)) && is_whole(c.value(2)) {
            let clamped = |x: f64| Unary::Clamp { min, max }.value(x);
            return c.tape.map(x, Dtype::Int, clamped).map(Value::Tensor);
        }
        return c.unary(Unary::Clamp { min, max });
    }
    // On a bound the gradient goes to `x`, as with numbers.
    for (index, is_outside) in [
        (1, (|x, bound| x < bound) as fn(f64, f64) -> bool),
        (2, |x, bound| x > bound),
    ] {
        if c.value(index).is_some() {
            let bound = c.operand(index)?;
            let outside = |x, bound| f64::from(u8::from(is_outside(x, bound)));
            let mask = c.tape.step(x, bound, Dtype::Bool, outside)?;
            x = c.tape.select(mask, bound, x)?;
        }
    }
    Ok(Value::Tensor(x))
}

fn nan_to_num(c: &mut Call<'_>) -> Result {
    let x = c.tensor(0)?;
    let largest = f64::from(f32::MAX);
    let replaced = [
        (c.number(1)?.unwrap_or(0.0), f64::is_nan as fn(f64) -> bool),
        (c.number(2)?.unwrap_or(largest), |x| x == f64::INFINITY),
        (c.number(3)?.unwrap_or(-largest), |x| x == f64::NEG_INFINITY),
    ];
    let mut result = x;
    for (value, is_replaced) in replaced {
        let is_replaced = |x| f64::from(u8::from(is_replaced(x)));
        let mask = c.tape.map(x, Dtype::Bool, is_replaced)?;
        let value = c.constant(value)?;
        result = c.tape.select(mask, value, result)?;
    }
    Ok(Value::Tensor(result))
}

fn to(c: &mut Call<'_>) -> Result {
    let x = c.tensor(0)?;
    let mut dtype = c.tape.dtype(x);
    for index in [1, 2] {
        match c.value(index) {
            None | Some(Value::Place) => {}
            Some(Value::Text(device)) if device == "cpu" => {}
            Some(Value::Dtype(wanted)) => dtype = *wanted,
            Some(Value::Tensor(like)) => dtype = c.tape.dtype(*like),
            Some(_) => return c.wrong(index, "a dtype, a tensor or the device cpu"),
        }
    }
    c.tape.cast(x, dtype).map(Value::Tensor)
}
