//! What can be done with a variable, apart from arithmetic.

use super::Var;
use super::op::{NodeIndex, Op};
use super::var::{Repr, align};
use std::ops::{Bound, RangeBounds};
use tinkrs_autodiff::{Binary, Unary};

impl<'tape> Var<'tape> {
    /// Returns e to the power of each element.
    #[track_caller]
    pub fn exp(self) -> Self {
        self.unary("exp", Unary::Exp)
    }

    /// Returns the natural logarithm of each element.
    #[track_caller]
    pub fn ln(self) -> Self {
        self.unary("ln", Unary::Ln)
    }

    /// Returns the natural logarithm of each element; PyTorch's name of [`ln`](Self::ln).
    #[track_caller]
    pub fn log(self) -> Self {
        self.unary("log", Unary::Ln)
    }

    /// Returns the square root of each element.
    #[track_caller]
    pub fn sqrt(self) -> Self {
        self.unary("sqrt", Unary::Sqrt)
    }

    /// Returns each element to a whole power.
    #[track_caller]
    pub fn powi(self, exponent: i32) -> Self {
        self.unary("powi", Unary::Powi(exponent))
    }

    /// Returns each element to a power.
    #[track_caller]
    pub fn powf(self, exponent: f64) -> Self {
        self.unary("powf", Unary::Pow(exponent))
    }

    /// Returns each element without its sign. The gradient at 0 is 0.
    #[track_caller]
    pub fn abs(self) -> Self {
        self.unary("abs", Unary::Abs)
    }

    /// Returns `1 / (1 + e⁻ˣ)` of each element.
    #[track_caller]
    pub fn sigmoid(self) -> Self {
        self.unary("sigmoid", Unary::Sigmoid)
    }

    /// Returns `ln(1 / (1 + e⁻ˣ))` of each element, exact for large ones of either sign.
    #[track_caller]
    pub fn log_sigmoid(self) -> Self {
        self.unary("log_sigmoid", Unary::LogSigmoid)
    }

    /// Returns `ln(1 + eˣ)` of each element, exact for large ones of either sign.
    #[track_caller]
    pub fn softplus(self) -> Self {
        self.unary("softplus", Unary::Softplus)
    }

    /// Returns the hyperbolic tangent of each element.
    #[track_caller]
    pub fn tanh(self) -> Self {
        self.unary("tanh", Unary::Tanh)
    }

    /// Returns each element, or 0 if it is negative. The gradient at 0 is 0.
    #[track_caller]
    pub fn relu(self) -> Self {
        self.unary("relu", Unary::Relu)
    }

    /// Moves each element into `min..=max`.
    ///
    /// Elements inside and at the bounds pass the gradient on. If the bounds are the wrong way
    /// round, `max` wins.
    #[track_caller]
    pub fn clamp(self, min: f64, max: f64) -> Self {
        let (min, max) = (Some(min), Some(max));
        self.unary("clamp", Unary::Clamp { min, max })
    }

    /// Raises each element to at least `min`; those at `min` pass the gradient on.
    #[track_caller]
    pub fn clamp_min(self, min: f64) -> Self {
        let (min, max) = (Some(min), None);
        self.unary("clamp_min", Unary::Clamp { min, max })
    }

    /// Lowers each element to at most `max`; those at `max` pass the gradient on.
    #[track_caller]
    pub fn clamp_max(self, max: f64) -> Self {
        let (min, max) = (None, Some(max));
        self.unary("clamp_max", Unary::Clamp { min, max })
    }

    /// Returns the smaller of each pair of elements. Equal ones share the gradient.
    ///
    /// With a plain number this is [`clamp_max`](Self::clamp_max).
    #[track_caller]
    pub fn minimum(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        match (self.repr, other.repr) {
            (Repr::Node(..), Repr::Number(max)) => self.clamp_max(max),
            (Repr::Number(max), Repr::Node(..)) => other.clamp_max(max),
            _ => self.binary("minimum", Binary::Minimum, other),
        }
    }

    /// Returns the larger of each pair of elements. Equal ones share the gradient.
    ///
    /// With a plain number this is [`clamp_min`](Self::clamp_min).
    #[track_caller]
    pub fn maximum(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        match (self.repr, other.repr) {
            (Repr::Node(..), Repr::Number(min)) => self.clamp_min(min),
            (Repr::Number(min), Repr::Node(..)) => other.clamp_min(min),
            _ => self.binary("maximum", Binary::Maximum, other),
        }
    }

    /// Picks from `on` where this mask is not 0, and from `off` elsewhere.
    ///
    /// What is not picked has no part in the gradient, even if it is infinite or not a number.
    ///
    /// ```
    /// # use tinkrs::{Datum, autodiff};
    /// # let data = [Datum::supervised(vec![1, 2], [2, 3], [1.0, 0.0])?];
    /// let loss = autodiff::loss(|data, logprobs| {
    ///     let counted = logprobs[0].input(&data[0], "weights");
    ///     let nll = counted.select(-logprobs[0], 0.0);
    ///     Ok((nll.sum(), Default::default()))
    /// });
    /// assert_eq!(loss(&data, &[&[-0.5, f32::NEG_INFINITY]])?.loss, 0.5);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[track_caller]
    pub fn select(self, on: impl Into<Self>, off: impl Into<Self>) -> Self {
        let (on, off) = (on.into(), off.into());
        Self::join("select", &[self, on, off], |tape| {
            // The mask alone is put on the tape as a node: the other two may stay numbers.
            let mask = Self::node(tape, self.place(tape)?);
            let [mask, on, off] = align(tape, [mask.arg(), on.arg(), off.arg()])?;
            tape.apply(Op::Select { mask, on, off })
        })
    }

    /// Returns the sum of all elements.
    #[track_caller]
    pub fn sum(self) -> Self {
        self.reduce("sum", Op::Sum)
    }

    /// Returns the mean of all elements; of none, it is not a number.
    #[track_caller]
    pub fn mean(self) -> Self {
        self.reduce("mean", Op::Mean)
    }

    /// Returns the sums along the last axis: `[T, K]` becomes `[T]`, and `[T]` a scalar.
    #[track_caller]
    pub fn sum_last(self) -> Self {
        self.reduce("sum_last", Op::SumLast)
    }

    /// Returns `ln Σ eˣ` along the last axis: `[T, K]` becomes `[T]`, and `[T]` a scalar.
    #[track_caller]
    pub fn logsumexp(self) -> Self {
        self.reduce("logsumexp", Op::LogSumExp)
    }

    /// Returns the same value as a constant: no gradient passes through it.
    #[track_caller]
    pub fn detach(self) -> Self {
        self.reduce("detach", Op::Detach)
    }

    /// Returns the inner product of two vectors.
    #[track_caller]
    pub fn dot(self, other: impl Into<Self>) -> Self {
        let other = other.into();
        Self::join("dot", &[self, other], |tape| {
            tape.apply(Op::Dot(self.place(tape)?, other.place(tape)?))
        })
    }

    /// Returns a range of a vector's elements or a matrix's rows: `slice(1..)`, `slice(..-1)`.
    ///
    /// Negative bounds count from the end, as in Python; bounds outside fail. Clippy takes a
    /// literal `1..-1` for an empty range: write `slice(1..).slice(..-1)`.
    #[track_caller]
    pub fn slice<P: Position>(self, range: impl RangeBounds<P>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(start) => Some(start.position()),
            Bound::Excluded(start) => Some(start.position().saturating_add(1)),
            Bound::Unbounded => None,
        };
        let end = match range.end_bound() {
            // Up to and with the last element: what is behind it cannot be counted from the end.
            Bound::Included(end) if end.position() == -1 => None,
            Bound::Included(end) => Some(end.position().saturating_add(1)),
            Bound::Excluded(end) => Some(end.position()),
            Bound::Unbounded => None,
        };
        self.apply("slice", |tape, of| tape.apply(Op::Slice { of, start, end }))
    }

    /// Returns one element of a vector, or one row of a matrix; `-1` is the last.
    #[track_caller]
    pub fn index(self, position: impl Position) -> Self {
        let at = position.position();
        self.apply("index", |tape, of| tape.apply(Op::Index { of, at }))
    }

    /// Joins vectors, or matrices with equally many columns, along the first axis.
    #[track_caller]
    pub fn concat(parts: &[Self]) -> Self {
        Self::join("concat", parts, |tape| {
            let places = parts.iter().map(|part| part.place(tape));
            tape.apply(Op::Concat(places.collect::<Result<_, _>>()?))
        })
    }

    /// Makes a vector of scalars.
    #[track_caller]
    pub fn stack(scalars: &[Self]) -> Self {
        Self::join("stack", scalars, |tape| {
            let places = scalars.iter().map(|scalar| scalar.place(tape));
            tape.apply(Op::Stack(places.collect::<Result<_, _>>()?))
        })
    }

    #[track_caller]
    pub(super) fn unary(self, operation: &'static str, function: Unary) -> Self {
        match self.repr {
            Repr::Number(number) => function.value(number).into(),
            Repr::Node(..) | Repr::Failed(_) => {
                self.reduce(operation, |node| Op::Unary(function, node))
            }
        }
    }

    #[track_caller]
    pub(super) fn binary(self, operation: &'static str, function: Binary, other: Self) -> Self {
        if let (Repr::Number(a), Repr::Number(b)) = (self.repr, other.repr) {
            return function.value(a, b).into();
        }
        Self::join(operation, &[self, other], |tape| {
            let [a, b] = align(tape, [self.arg(), other.arg()])?;
            tape.apply(Op::Binary(function, a, b))
        })
    }

    /// Applies an operation that leaves a plain number what it is.
    #[track_caller]
    fn reduce(self, operation: &'static str, op: impl FnOnce(NodeIndex) -> Op) -> Self {
        match self.repr {
            Repr::Number(_) => self,
            Repr::Node(..) | Repr::Failed(_) => {
                self.apply(operation, |tape, node| tape.apply(op(node)))
            }
        }
    }
}

/// A position in a vector: any common integer. Negative ones count from the end.
pub trait Position: Copy + sealed::Sealed {
    #[doc(hidden)]
    fn position(self) -> i64;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! position {
    ($($integer:ty),*) => {$(
        impl sealed::Sealed for $integer {}

        impl Position for $integer {
            fn position(self) -> i64 {
                // A position too large for an `i64` lies outside of any vector, as does this one.
                i64::try_from(self).unwrap_or(i64::MAX)
            }
        }
    )*};
}

position!(i32, i64, isize, u32, usize);
