//! What the nodes of a graph compute with besides tensors: Python's numbers, tuples and the like.

use std::cmp::Ordering;

use tinkrs_autodiff::{Dtype, Error, Id, Tensor};

/// A number as Python has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Bool(value) => f64::from(u8::from(value)),
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Returns the number if it is a whole one by its type.
    pub(super) fn int(self) -> Option<i64> {
        match self {
            Self::Bool(value) => Some(i64::from(value)),
            Self::Int(value) => Some(value),
            Self::Float(_) => None,
        }
    }

    pub(super) fn tensor(self) -> Tensor {
        let dtype = match self {
            Self::Bool(_) => Dtype::Bool,
            Self::Int(_) => Dtype::Int,
            Self::Float(_) => Dtype::Float,
        };
        Tensor::scalar(self.float(), dtype)
    }
}

/// An operator of Python on two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    TrueDiv,
    FloorDiv,
    Mod,
    Pow,
}

/// Applies an operator as Python does: whole numbers stay whole, except in a division.
pub(super) fn calculate(operator: Arithmetic, a: Number, b: Number) -> Result<Number, Error> {
    use Arithmetic::{Add, FloorDiv, Mod, Mul, Pow, Sub, TrueDiv};

    let (x, y) = (a.float(), b.float());
    if y == 0.0 && matches!(operator, TrueDiv | FloorDiv | Mod) {
        return Err(Error::Size("divides by zero".to_owned()));
    }
    if let (Some(a), Some(b)) = (a.int(), b.int()) {
        let whole = match operator {
            Add => a.checked_add(b),
            Sub => a.checked_sub(b),
            Mul => a.checked_mul(b),
            FloorDiv => a.checked_div_euclid(b).map(|quotient| match b < 0 {
                // Rounded down, where Euclid rounds so that the remainder is not negative.
                true if a.rem_euclid(b) != 0 => quotient - 1,
                _ => quotient,
            }),
            Mod => a.checked_rem(b).map(|rest| {
                if rest != 0 && (rest < 0) != (b < 0) {
                    rest + b
                } else {
                    rest
                }
            }),
            Pow if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            Pow | TrueDiv => return Ok(Number::Float(fraction(operator, x, y))),
        };
        let too_large = || Error::Size("computes a whole number that is too large".to_owned());
        return whole.map(Number::Int).ok_or_else(too_large);
    }
    Ok(Number::Float(fraction(operator, x, y)))
}

fn fraction(operator: Arithmetic, x: f64, y: f64) -> f64 {
    match operator {
        Arithmetic::Add => x + y,
        Arithmetic::Sub => x - y,
        Arithmetic::Mul => x * y,
        Arithmetic::TrueDiv => x / y,
        Arithmetic::FloorDiv => (x / y).floor(),
        Arithmetic::Mod => modulo(x, y),
        Arithmetic::Pow => x.powf(y),
    }
}

/// The remainder with the sign of the divisor, as Python and PyTorch have it.
pub(super) fn modulo(x: f64, y: f64) -> f64 {
    let rest = x % y;
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) {
        rest + y
    } else {
        rest
    }
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Comparison {
    pub(super) fn holds(self, a: f64, b: f64) -> bool {
        let order = a.partial_cmp(&b);
        match self {
            Self::Eq => order == Some(Ordering::Equal),
            Self::Ne => order != Some(Ordering::Equal),
            Self::Lt => order == Some(Ordering::Less),
            Self::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Gt => order == Some(Ordering::Greater),
            Self::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

/// The result of a node, or a literal.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Tensor(Id),
    Number(Number),
    /// A list or a tuple; a shape is one too.
    List(Vec<Self>),
    None,
    Text(String),
    Dtype(Dtype),
    /// Where a tensor is: here. Also a layout or memory format, of which there is one.
    Place,
    Slice(Box<[Self; 3]>),
    Ellipsis,
}

impl Value {
    pub(super) fn int(value: usize) -> Self {
        Self::Number(Number::Int(value as i64))
    }

    pub(super) fn shape(shape: &[usize]) -> Self {
        Self::List(shape.iter().map(|size| Self::int(*size)).collect())
    }

    /// Counts this and everything in it.
    pub(super) fn items(&self) -> usize {
        match self {
            Self::List(items) => 1 + items.iter().map(Self::items).sum::<usize>(),
            Self::Slice(bounds) => 1 + bounds.iter().map(Self::items).sum::<usize>(),
            _ => 1,
        }
    }

    /// Says what this is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Tensor(_) => "a tensor",
            Self::Number(_) => "a number",
            Self::List(_) => "a list",
            Self::None => "None",
            Self::Text(_) => "a text",
            Self::Dtype(_) => "a dtype",
            Self::Place => "a device",
            Self::Slice(_) => "a slice",
            Self::Ellipsis => "`...`",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_divide_as_in_python() {
        use Arithmetic::{FloorDiv, Mod, Pow, TrueDiv};

        let int = Number::Int;
        let cases = [
            (FloorDiv, int(7), int(2), int(3)),
            (FloorDiv, int(-7), int(2), int(-4)),
            (FloorDiv, int(7), int(-2), int(-4)),
            (FloorDiv, int(-7), int(-2), int(3)),
            (FloorDiv, int(-8), int(-2), int(4)),
            (Mod, int(-7), int(2), int(1)),
            (Mod, int(7), int(-2), int(-1)),
            (TrueDiv, int(7), int(2), Number::Float(3.5)),
            (Pow, int(2), int(10), int(1024)),
            (Pow, int(2), int(-1), Number::Float(0.5)),
            (Mod, Number::Float(-0.5), int(2), Number::Float(1.5)),
            (FloorDiv, Number::Float(-0.5), int(2), Number::Float(-1.0)),
        ];
        for (operator, a, b, expected) in cases {
            let result = calculate(operator, a, b).unwrap();
            assert_eq!(result, expected, "{operator:?} of {a:?} and {b:?}");
        }
        for (operator, a, b) in [(TrueDiv, int(1), int(0)), (Pow, int(10), int(100))] {
            assert!(calculate(operator, a, b).is_err(), "{operator:?}");
        }
        assert!(calculate(FloorDiv, int(i64::MIN), int(-1)).is_err());
    }
}
