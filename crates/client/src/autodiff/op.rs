//! The operations that a tape records, and what each does to single numbers.
//!
//! Operations on elements are two small tables: the value of a function, and its slope. Where a
//! function has a kink the slope is a choice, stated at its line.

/// Where a recorded operation stands on its tape.
pub(super) type NodeIndex = usize;

/// One side of an operation: an earlier result, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arg {
    Node(NodeIndex),
    Number(f64),
}

/// A recorded operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    /// What gradients are taken by, or in a trace an input by its position.
    Input(usize),
    /// Numbers from outside.
    Constant,
    Unary(Unary, NodeIndex),
    Binary(Binary, Arg, Arg),
    /// Picks from the first where the mask is not 0, else from the second.
    Select {
        mask: Arg,
        on: Arg,
        off: Arg,
    },
    /// Adds all elements.
    Sum(NodeIndex),
    /// Averages all elements.
    Mean(NodeIndex),
    /// Adds along the last dimension.
    SumLast(NodeIndex),
    /// The logarithm of the sum of exponentials along the last dimension.
    LogSumExp(NodeIndex),
    /// The inner product of two vectors.
    Dot(NodeIndex, NodeIndex),
    /// A range of the first dimension; negative bounds count from its end.
    Slice {
        of: NodeIndex,
        start: Option<i64>,
        end: Option<i64>,
    },
    /// One element of a vector, or one row of a matrix.
    Index {
        of: NodeIndex,
        at: i64,
    },
    /// Joins along the first dimension.
    Concat(Vec<NodeIndex>),
    /// Makes a vector of scalars.
    Stack(Vec<NodeIndex>),
    /// Makes a vector a matrix of one column.
    Column(NodeIndex),
    /// Passes the value on, and no gradient back.
    Detach(NodeIndex),
}

impl Op {
    /// Returns the earlier results that the operation passes gradients to.
    pub(super) fn arguments(&self) -> impl Iterator<Item = NodeIndex> {
        let (args, list): ([Option<Arg>; 2], &[NodeIndex]) = match self {
            Self::Input(_) | Self::Constant => ([None; 2], &[]),
            Self::Unary(_, x)
            | Self::Sum(x)
            | Self::Mean(x)
            | Self::SumLast(x)
            | Self::LogSumExp(x)
            | Self::Slice { of: x, .. }
            | Self::Index { of: x, .. }
            | Self::Column(x)
            | Self::Detach(x) => ([Some(Arg::Node(*x)), None], &[]),
            Self::Binary(_, a, b) => ([Some(*a), Some(*b)], &[]),
            // The mask decides where gradients go and gets none itself.
            Self::Select { on, off, .. } => ([Some(*on), Some(*off)], &[]),
            Self::Dot(a, b) => ([Some(Arg::Node(*a)), Some(Arg::Node(*b))], &[]),
            Self::Concat(nodes) | Self::Stack(nodes) => ([None; 2], nodes),
        };
        let node = |arg| match arg {
            Some(Arg::Node(node)) => Some(node),
            Some(Arg::Number(_)) | None => None,
        };
        args.into_iter()
            .filter_map(node)
            .chain(list.iter().copied())
    }
}

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unary {
    Neg,
    Exp,
    Ln,
    Sqrt,
    Abs,
    Sigmoid,
    LogSigmoid,
    Softplus,
    Tanh,
    Relu,
    Powi(i32),
    Powf(f64),
    Clamp { min: Option<f64>, max: Option<f64> },
}

impl Unary {
    pub(super) fn value(self, x: f64) -> f64 {
        match self {
            Self::Neg => -x,
            Self::Exp => x.exp(),
            Self::Ln => x.ln(),
            Self::Sqrt => x.sqrt(),
            Self::Abs => x.abs(),
            Self::Sigmoid => sigmoid(x),
            Self::LogSigmoid => -softplus(-x),
            Self::Softplus => softplus(x),
            Self::Tanh => x.tanh(),
            Self::Relu if x <= 0.0 => 0.0,
            Self::Relu => x,
            Self::Powi(exponent) => x.powi(exponent),
            Self::Powf(exponent) => x.powf(exponent),
            Self::Clamp { min, max } => clamp(x, min, max),
        }
    }

    /// Returns the slope at `x`, where the function has the value `y`.
    pub(super) fn slope(self, x: f64, y: f64) -> f64 {
        match self {
            Self::Neg => -1.0,
            Self::Exp => y,
            Self::Ln => 1.0 / x,
            Self::Sqrt => 0.5 / y,
            // 0 at 0, between the slopes on either side.
            Self::Abs if x == 0.0 => 0.0,
            Self::Abs => x.signum(),
            Self::Sigmoid => y * (1.0 - y),
            Self::LogSigmoid => sigmoid(-x),
            Self::Softplus => sigmoid(x),
            Self::Tanh => 1.0 - y * y,
            // 0 at 0, as left of it.
            Self::Relu if x <= 0.0 => 0.0,
            Self::Relu => 1.0,
            // Not x⁰ = 1 times 0 times x⁻¹: at 0 that would not be a number.
            Self::Powi(0) => 0.0,
            Self::Powi(exponent) => f64::from(exponent) * x.powf(f64::from(exponent) - 1.0),
            Self::Powf(0.0) => 0.0,
            Self::Powf(exponent) => exponent * x.powf(exponent - 1.0),
            // 1 at a bound, as inside: an example that starts out on a bound can leave it.
            Self::Clamp { min, max } => {
                let inside = min.is_none_or(|min| x >= min) && max.is_none_or(|max| x <= max);
                f64::from(u8::from(inside && !x.is_nan()))
            }
        }
    }
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Minimum,
    Maximum,
}

impl Binary {
    pub(super) fn value(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
            Self::Minimum | Self::Maximum if a.is_nan() || b.is_nan() => f64::NAN,
            Self::Minimum => a.min(b),
            Self::Maximum => a.max(b),
        }
    }

    /// Returns the slopes by either side.
    pub(super) fn slopes(self, a: f64, b: f64) -> (f64, f64) {
        match self {
            Self::Add => (1.0, 1.0),
            Self::Sub => (1.0, -1.0),
            Self::Mul => (b, a),
            Self::Div => (1.0 / b, -a / (b * b)),
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

fn clamp(x: f64, min: Option<f64>, max: Option<f64>) -> f64 {
    // Not `f64::clamp`, which panics if the bounds are the wrong way round. The upper one wins.
    if x.is_nan() {
        return x;
    }
    let raised = min.map_or(x, |min| x.max(min));
    max.map_or(raised, |max| raised.min(max))
}

/// `1 / (1 + e⁻ˣ)` without overflow on either side.
fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 {
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + e)
    }
}

/// `ln(1 + eˣ)` without overflow or cancellation.
fn softplus(x: f64) -> f64 {
    // `max` would turn not-a-number into 0.
    let linear = if x < 0.0 { 0.0 } else { x };
    linear + (-x.abs()).exp().ln_1p()
}
