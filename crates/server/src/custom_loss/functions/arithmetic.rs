//! Functions of two tensors, element by element, and the operators of Python.

use super::{Call, Function, Result, function};
use crate::custom_loss::value;
use crate::custom_loss::value::{Arithmetic, Comparison, Number, Value, calculate, modulo};
use tinkrs_autodiff::{Binary, Dtype, Error, Id, Unary};

/// An operator that makes `x += y` of `x + y`.
const fn in_place(name: &'static str, run: fn(&mut Call<'_>) -> Result) -> Function {
    Function {
        in_place: true,
        ..function("o", name, "input other", run)
    }
}

pub(super) const TABLE: &[Function] = &[
    function("o", "add", "input other", |c| c.operate(Arithmetic::Add)),
    function("o", "sub", "input other", |c| c.operate(Arithmetic::Sub)),
    function("o", "mul", "input other", |c| c.operate(Arithmetic::Mul)),
    function("o", "truediv", "input other", |c| {
        c.operate(Arithmetic::TrueDiv)
    }),
    function("o", "floordiv", "input other", |c| {
        c.operate(Arithmetic::FloorDiv)
    }),
    function("o", "mod", "input other", |c| c.operate(Arithmetic::Mod)),
    function("o", "pow", "input other", |c| c.operate(Arithmetic::Pow)),
    in_place("iadd", |c| c.operate(Arithmetic::Add)),
    in_place("isub", |c| c.operate(Arithmetic::Sub)),
    in_place("imul", |c| c.operate(Arithmetic::Mul)),
    in_place("itruediv", |c| c.operate(Arithmetic::TrueDiv)),
    in_place("ipow", |c| c.operate(Arithmetic::Pow)),
    function("tm", "add", "input other alpha? out!", |c| {
        c.scaled_by_alpha(Binary::Add)
    }),
    function("tm", "sub subtract", "input other alpha? out!", |c| {
        c.scaled_by_alpha(Binary::Sub)
    }),
    function("t", "rsub", "input other alpha?", |c| {
        c.arguments.swap(0, 1);
        c.scaled_by_alpha(Binary::Sub)
    }),
    function("tm", "mul multiply", "input other out!", |c| {
        c.binary(Binary::Mul)
    }),
    function(
        "tm",
        "div divide",
        "input other rounding_mode? out!",
        |c| match c.text(2)? {
            None => c.binary(Binary::Div),
            Some("floor") => c.operate(Arithmetic::FloorDiv),
            Some("trunc") => c.stepped(|a, b| (a / b).trunc()),
            Some(_) => c.wrong(2, "floor or trunc"),
        },
    ),
    function("tm", "true_divide", "input other out!", |c| {
        c.binary(Binary::Div)
    }),
    function("tm", "floor_divide", "input other out!", |c| {
        c.operate(Arithmetic::FloorDiv)
    }),
    function("tm", "remainder", "input other out!", |c| {
        c.operate(Arithmetic::Mod)
    }),
    function("tm", "pow", "input exponent out!", |c| {
        c.operate(Arithmetic::Pow)
    }),
    function("tm", "maximum", "input other out!", |c| {
        c.binary(Binary::Maximum)
    }),
    function("tm", "minimum", "input other out!", |c| {
        c.binary(Binary::Minimum)
    }),
    function("tms", "logaddexp", "input other out!", logaddexp),
    function("tms", "xlogy", "input other out!", xlogy),
    function("tm", "lerp", "input end weight out!", lerp),
    function("o", "neg", "input", |c| c.signed(-1)),
    function("o", "pos", "input", |c| c.signed(1)),
    function("tm", "neg negative", "input out!", |c| c.signed(-1)),
    function("o", "abs", "input", absolute),
    function("tm", "abs absolute", "input out!", absolute),
    function("otm", "eq", "input other out!", |c| {
        c.compare(Comparison::Eq)
    }),
    function("otm", "ne not_equal", "input other out!", |c| {
        c.compare(Comparison::Ne)
    }),
    function("otm", "lt less", "input other out!", |c| {
        c.compare(Comparison::Lt)
    }),
    function("otm", "le less_equal", "input other out!", |c| {
        c.compare(Comparison::Le)
    }),
    function("otm", "gt greater", "input other out!", |c| {
        c.compare(Comparison::Gt)
    }),
    function("otm", "ge greater_equal", "input other out!", |c| {
        c.compare(Comparison::Ge)
    }),
    function("o", "and_", "input other", |c| c.bitwise(|a, b| a && b)),
    function("o", "or_", "input other", |c| c.bitwise(|a, b| a || b)),
    function("o", "xor", "input other", |c| c.bitwise(|a, b| a != b)),
    function("o", "inv invert", "input", |c| {
        let x = c.truth_values(0)?;
        let not = |x: f64| f64::from(u8::from(x == 0.0));
        c.tape.map(x, Dtype::Bool, not).map(Value::Tensor)
    }),
    function("tm", "logical_and", "input other out!", |c| {
        c.logical(|a, b| a && b)
    }),
    function("tm", "logical_or", "input other out!", |c| {
        c.logical(|a, b| a || b)
    }),
    function("tm", "logical_xor", "input other out!", |c| {
        c.logical(|a, b| a != b)
    }),
    function("t", "where", "condition input other", |c| {
        let (on, off) = (c.operand(1)?, c.operand(2)?);
        let mask = c.truth_values(0)?;
        c.tape.select(mask, on, off).map(Value::Tensor)
    }),
    function("m", "where", "input condition other", |c| {
        let (on, off) = (c.operand(0)?, c.operand(2)?);
        let mask = c.truth_values(1)?;
        c.tape.select(mask, on, off).map(Value::Tensor)
    }),
    function("tm", "masked_fill", "input mask value", |c| {
        let (x, value) = (c.tensor(0)?, c.operand(2)?);
        let mask = c.truth_values(1)?;
        c.tape.select(mask, value, x).map(Value::Tensor)
    }),
];

impl Call<'_> {
    pub(super) fn binary(&mut self, function: Binary) -> Result {
        let (a, b) = (self.operand(0)?, self.operand(1)?);
        self.tape.binary(function, a, b).map(Value::Tensor)
    }

    /// An operator of Python, on numbers or tensors.
    fn operate(&mut self, operator: Arithmetic) -> Result {
        if let Some((a, b)) = self.numbers() {
            return calculate(operator, a, b).map(Value::Number);
        }
        if let (Arithmetic::Add, Some(Value::List(a)), Some(Value::List(b))) =
            (operator, self.value(0), self.value(1))
        {
            return Ok(Value::List([a.as_slice(), b].concat()));
        }
        match operator {
            Arithmetic::Add => self.binary(Binary::Add),
            Arithmetic::Sub => self.binary(Binary::Sub),
            Arithmetic::Mul => self.binary(Binary::Mul),
            Arithmetic::TrueDiv => self.binary(Binary::Div),
            Arithmetic::FloorDiv => self.stepped(|a, b| (a / b).floor()),
            Arithmetic::Mod => self.remainder(),
            Arithmetic::Pow => match self.value(1) {
                Some(Value::Number(exponent)) => self.power(*exponent),
                _ => self.binary(Binary::Pow),
            },
        }
    }

    fn power(&mut self, exponent: Number) -> Result {
        let x = self.tensor(0)?;
        let is_whole = exponent.int().is_some_and(|exponent| exponent >= 0);
        let exponent = exponent.float();
        if self.tape.dtype(x) != Dtype::Float && is_whole {
            let power = |x: f64| x.powf(exponent);
            return self.tape.map(x, Dtype::Int, power).map(Value::Tensor);
        }
        self.unary(Unary::Pow(exponent))
    }

    /// `a − ⌊a / b⌋ · b`, whose slope by `a` is 1.
    fn remainder(&mut self) -> Result {
        let (a, b) = (self.operand(0)?, self.operand(1)?);
        if self.tape.dtype(a).max(self.tape.dtype(b)) != Dtype::Float {
            return self.stepped(modulo);
        }
        let times = self.tape.step(a, b, Dtype::Float, |a, b| {
            let times = ((a - value::modulo(a, b)) / b).round();
            if times.is_finite() { times } else { f64::NAN }
        })?;
        let whole = self.tape.binary(Binary::Mul, times, b)?;
        self.tape.binary(Binary::Sub, a, whole).map(Value::Tensor)
    }

    /// A function without a slope, which keeps whole numbers whole.
    fn stepped(&mut self, function: impl Fn(f64, f64) -> f64) -> Result {
        let (a, b) = (self.operand(0)?, self.operand(1)?);
        let dtype = self.tape.dtype(a).max(self.tape.dtype(b)).max(Dtype::Int);
        self.tape.step(a, b, dtype, function).map(Value::Tensor)
    }

    fn scaled_by_alpha(&mut self, function: Binary) -> Result {
        let (a, mut b) = (self.operand(0)?, self.operand(1)?);
        if let Some(alpha) = self.number(2)? {
            b = self.tape.unary(Unary::Scale(alpha), b)?;
        }
        self.tape.binary(function, a, b).map(Value::Tensor)
    }

    fn signed(&mut self, sign: i8) -> Result {
        match (self.value(0), sign) {
            (Some(Value::Number(number)), _) => {
                let factor = Number::Int(sign.into());
                calculate(Arithmetic::Mul, *number, factor).map(Value::Number)
            }
            (Some(Value::Tensor(x)), 1) => Ok(Value::Tensor(*x)),
            _ => self.unary(Unary::Neg),
        }
    }

    fn compare(&mut self, comparison: Comparison) -> Result {
        if let Some((a, b)) = self.numbers() {
            let holds = comparison.holds(a.float(), b.float());
            return Ok(Value::Number(Number::Bool(holds)));
        }
        let (a, b) = (self.operand(0)?, self.operand(1)?);
        let holds = |a, b| f64::from(u8::from(comparison.holds(a, b)));
        self.tape.step(a, b, Dtype::Bool, holds).map(Value::Tensor)
    }

    fn logical(&mut self, function: fn(bool, bool) -> bool) -> Result {
        let (a, b) = (self.operand(0)?, self.operand(1)?);
        let truth = move |a: f64, b: f64| f64::from(u8::from(function(a != 0.0, b != 0.0)));
        self.tape.step(a, b, Dtype::Bool, truth).map(Value::Tensor)
    }

    fn bitwise(&mut self, function: fn(bool, bool) -> bool) -> Result {
        if let Some((Number::Bool(a), Number::Bool(b))) = self.numbers() {
            return Ok(Value::Number(Number::Bool(function(a, b))));
        }
        self.truth_values(0)?;
        self.truth_values(1)?;
        self.logical(function)
    }

    /// Returns an argument that has to hold truth values.
    pub(super) fn truth_values(&mut self, index: usize) -> Result<Id> {
        let id = self.operand(index)?;
        match self.tape.dtype(id) {
            Dtype::Bool => Ok(id),
            _ => Err(Error::Kind(
                "a mask has to hold truth values: compare it, as in mask != 0, or call .bool()"
                    .to_owned(),
            )),
        }
    }
}

fn absolute(c: &mut Call<'_>) -> Result {
    match c.value(0) {
        Some(Value::Number(Number::Float(x))) => Ok(Value::Number(Number::Float(x.abs()))),
        Some(Value::Number(number)) => {
            let whole = number.int().and_then(i64::checked_abs);
            let too_large = || Error::Size("is too large".to_owned());
            whole
                .map(Number::Int)
                .map(Value::Number)
                .ok_or_else(too_large)
        }
        _ => c.unary(Unary::Abs),
    }
}

/// `ln(eᵃ + eᵇ) = max(a, b) + ln(1 + e^(−|a − b|))`.
fn logaddexp(c: &mut Call<'_>) -> Result {
    let (a, b) = (c.operand(0)?, c.operand(1)?);
    let difference = c.tape.binary(Binary::Sub, b, a)?;
    let above = c.tape.unary(Unary::Softplus, difference)?;
    c.tape.binary(Binary::Add, a, above).map(Value::Tensor)
}

/// `a · ln b`, and 0 where `a` is 0.
fn xlogy(c: &mut Call<'_>) -> Result {
    let (a, b) = (c.operand(0)?, c.operand(1)?);
    let logarithm = c.tape.unary(Unary::Ln, b)?;
    let product = c.tape.binary(Binary::Mul, a, logarithm)?;
    let mask = c
        .tape
        .map(a, Dtype::Bool, |a| f64::from(u8::from(a == 0.0)))?;
    let zero = c.constant(0.0)?;
    c.tape.select(mask, zero, product).map(Value::Tensor)
}

fn lerp(c: &mut Call<'_>) -> Result {
    let (start, end, weight) = (c.tensor(0)?, c.operand(1)?, c.operand(2)?);
    let difference = c.tape.binary(Binary::Sub, end, start)?;
    let part = c.tape.binary(Binary::Mul, weight, difference)?;
    c.tape.binary(Binary::Add, start, part).map(Value::Tensor)
}
