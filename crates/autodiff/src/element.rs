//! Functions of single numbers: their values and slopes.
//!
//! Where a function has a kink, the slope is the one that PyTorch chooses, except that
//! [`Unary::Clamp`] passes the gradient at its bounds, too: an element that starts out on a bound can
//! leave it.

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// `−x`.
    Neg,
    /// `eˣ`.
    Exp,
    /// `eˣ − 1`, exact for small `x`.
    ExpM1,
    /// `ln x`.
    Ln,
    /// `ln(1 + x)`, exact for small `x`.
    Ln1p,
    /// `√x`.
    Sqrt,
    /// `|x|`, with the slope 0 at 0.
    Abs,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `ln(1 / (1 + e⁻ˣ))`.
    LogSigmoid,
    /// `ln(1 + eˣ)`.
    Softplus,
    /// The hyperbolic tangent.
    Tanh,
    /// `max(x, 0)`, with the slope 0 at 0.
    Relu,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
    /// A whole power.
    Powi(i32),
    /// Any power.
    Pow(f64),
    /// `x` times a number.
    Scale(f64),
    /// `x` moved between two bounds. If they are the wrong way round, the upper one wins.
    Clamp {
        /// The lower bound.
        min: Option<f64>,
        /// The upper bound.
        max: Option<f64>,
    },
}

impl Unary {
    /// Returns the value at `x`.
    pub fn value(self, x: f64) -> f64 {
        match self {
            Self::Neg => -x,
            Self::Exp => x.exp(),
            Self::ExpM1 => x.exp_m1(),
            Self::Ln => x.ln(),
            Self::Ln1p => x.ln_1p(),
            Self::Sqrt => x.sqrt(),
            Self::Abs => x.abs(),
            Self::Sigmoid => sigmoid(x),
            Self::LogSigmoid => -softplus(-x),
            Self::Softplus => softplus(x),
            Self::Tanh => x.tanh(),
            Self::Relu if x <= 0.0 => 0.0,
            Self::Relu => x,
            Self::Sin => x.sin(),
            Self::Cos => x.cos(),
            Self::Powi(exponent) => x.powi(exponent),
            Self::Pow(exponent) => x.powf(exponent),
            Self::Scale(factor) => x * factor,
            // Not `f64::clamp`, which panics if the bounds are the wrong way round.
            Self::Clamp { .. } if x.is_nan() => x,
            Self::Clamp { min, max } => {
                let raised = min.map_or(x, |min| x.max(min));
                max.map_or(raised, |max| raised.min(max))
            }
        }
    }

    /// Returns the slope at `x`, where the function has the value `y`.
    pub fn slope(self, x: f64, y: f64) -> f64 {
        match self {
            Self::Neg => -1.0,
            Self::Exp => y,
            Self::ExpM1 => y + 1.0,
            Self::Ln => 1.0 / x,
            Self::Ln1p => 1.0 / (1.0 + x),
            Self::Sqrt => 0.5 / y,
            Self::Abs if x == 0.0 => 0.0,
            Self::Abs => x.signum(),
            Self::Sigmoid => y * (1.0 - y),
            Self::LogSigmoid => sigmoid(-x),
            Self::Softplus => sigmoid(x),
            Self::Tanh => 1.0 - y * y,
            Self::Relu if x <= 0.0 => 0.0,
            Self::Relu => 1.0,
            Self::Sin => x.cos(),
            Self::Cos => -x.sin(),
            // Not 0 · x⁻¹, which at 0 is not a number.
            Self::Powi(0) | Self::Pow(0.0) => 0.0,
            Self::Powi(exponent) => f64::from(exponent) * x.powf(f64::from(exponent) - 1.0),
            Self::Pow(exponent) => exponent * x.powf(exponent - 1.0),
            Self::Scale(factor) => factor,
            Self::Clamp { min, max } => {
                let inside = min.is_none_or(|min| x >= min) && max.is_none_or(|max| x <= max);
                f64::from(u8::from(inside && !x.is_nan()))
            }
        }
    }
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a − b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
    /// `aᵇ`.
    Pow,
    /// The smaller one; equal ones share the gradient.
    Minimum,
    /// The larger one; equal ones share the gradient.
    Maximum,
}

impl Binary {
    /// Returns the value of a pair.
    pub fn value(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
            Self::Pow => a.powf(b),
            Self::Minimum | Self::Maximum if a.is_nan() || b.is_nan() => f64::NAN,
            Self::Minimum => a.min(b),
            Self::Maximum => a.max(b),
        }
    }

    /// Returns the slopes by either side, where the function has the value `y`.
    pub fn slopes(self, a: f64, b: f64, y: f64) -> (f64, f64) {
        match self {
            Self::Add => (1.0, 1.0),
            Self::Sub => (1.0, -1.0),
            Self::Mul => (b, a),
            Self::Div => (1.0 / b, -a / (b * b)),
            Self::Pow => {
                let by_base = if b == 0.0 { 0.0 } else { b * a.powf(b - 1.0) };
                let by_exponent = if a == 0.0 && b >= 0.0 {
                    0.0
                } else {
                    y * a.ln()
                };
                (by_base, by_exponent)
            }
            // Equal sides share the gradient.
            Self::Minimum | Self::Maximum if a == b => (0.5, 0.5),
            Self::Minimum => (unless(a > b), unless(b > a)),
            Self::Maximum => (unless(a < b), unless(b < a)),
        }
    }
}

/// 1 unless the other side was chosen; both sides of not-a-number, so that it stays visible.
fn unless(other: bool) -> f64 {
    if other { 0.0 } else { 1.0 }
}

/// `1 / (1 + e⁻ˣ)` without overflow on either side.
pub fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 {
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + e)
    }
}

/// `ln(1 + eˣ)` without overflow or cancellation.
pub fn softplus(x: f64) -> f64 {
    // `max` would turn not-a-number into 0.
    let linear = if x < 0.0 { 0.0 } else { x };
    linear + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: f64 = 1e-6;

    #[test]
    fn slopes_of_one_number_are_finite_differences() {
        let functions = [
            Unary::Neg,
            Unary::Exp,
            Unary::ExpM1,
            Unary::Ln,
            Unary::Ln1p,
            Unary::Sqrt,
            Unary::Abs,
            Unary::Sigmoid,
            Unary::LogSigmoid,
            Unary::Softplus,
            Unary::Tanh,
            Unary::Relu,
            Unary::Sin,
            Unary::Cos,
            Unary::Powi(3),
            Unary::Powi(0),
            Unary::Pow(2.5),
            Unary::Pow(0.0),
            Unary::Scale(-3.0),
            Unary::Clamp {
                min: Some(0.5),
                max: None,
            },
        ];
        for function in functions {
            for x in [0.3, 0.9, 2.0, -0.4] {
                let y = function.value(x);
                let around = (function.value(x + H) - function.value(x - H)) / (2.0 * H);
                if y.is_nan() {
                    continue; // outside the domain
                }
                let slope = function.slope(x, y);
                let close = (slope - around).abs() < 1e-7 * (1.0 + slope.abs());
                assert!(close, "{function:?} at {x}: {slope} instead of {around}");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_has_slopes_all_the_same() {
        for function in [Binary::Minimum, Binary::Maximum] {
            for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
                assert_eq!(function.slopes(a, b, f64::NAN), (1.0, 1.0), "{function:?}");
            }
        }
    }

    #[test]
    fn slopes_of_two_numbers_are_finite_differences() {
        use Binary::{Add, Div, Maximum, Minimum, Mul, Pow, Sub};

        for function in [Add, Sub, Mul, Div, Pow, Minimum, Maximum] {
            for (a, b) in [(0.4, 1.7), (2.0, 0.3), (1.5, -1.2)] {
                let value = |a, b| function.value(a, b);
                let (by_a, by_b) = function.slopes(a, b, value(a, b));
                let around_a = (value(a + H, b) - value(a - H, b)) / (2.0 * H);
                let around_b = (value(a, b + H) - value(a, b - H)) / (2.0 * H);
                for (slope, around) in [(by_a, around_a), (by_b, around_b)] {
                    let close = (slope - around).abs() < 1e-7 * (1.0 + slope.abs());
                    assert!(close, "{function:?}({a}, {b}): {slope} instead of {around}");
                }
            }
        }
    }
}
