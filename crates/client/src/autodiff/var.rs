//! The variables that losses are written with.
//!
//! A variable is a place on a tape, or a plain number that needs no tape. What can be done with
//! it stands in `functions.rs` and `operators.rs`; here is how an operation gets onto the tape,
//! and what happens when it cannot.

use super::op::{Arg, NodeIndex, Op};
use super::tape::{Caller, ExpressionError, Tape};
use super::tensor::{Shape, Tensor};
use std::fmt;
use std::panic::Location;
use tinkrs_types::Datum;

/// A number, vector or matrix in an expression that will be differentiated.
///
/// Variables are small and `Copy`: use one as often as needed. Arithmetic works between variables
/// and with `f64`, element by element: a scalar combines with anything, and a vector `[T]` with a
/// matrix `[T, K]` row by row; all other shapes must be equal.
///
/// No operation panics or returns a `Result`. The first one whose arguments do not fit makes the
/// evaluation of the whole loss fail with an [`ExpressionError`] that names its place in the
/// code; until then its result stands for "failed", with the value NaN.
///
/// Gradients at kinks: [`relu`](Self::relu) and [`abs`](Self::abs) have 0 at 0,
/// [`clamp`](Self::clamp) passes the gradient inside and at its bounds, and equal sides of
/// [`minimum`](Self::minimum) and [`maximum`](Self::maximum) share it. So does PyTorch, except
/// that the clamp of its release 2.15 passes nothing at the bounds themselves.
#[derive(Clone, Copy)]
pub struct Var<'tape> {
    pub(super) repr: Repr<'tape>,
}

#[derive(Clone, Copy)]
pub(super) enum Repr<'tape> {
    Number(f64),
    Node(&'tape Tape, NodeIndex),
    Failed(Fault),
}

/// An operation that failed. Its tape, if it had one, knows why.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    operation: &'static str,
    at: Caller,
}

impl Fault {
    /// Describes the only fault that leaves no trace on a tape: none of the arguments had one.
    pub(super) fn error(self) -> ExpressionError {
        ExpressionError::new(self.operation, self.at, OUTSIDE)
    }
}

impl<'tape> Var<'tape> {
    /// Makes a constant for the same expression: numbers from outside, with no gradient.
    ///
    /// Takes `f64`, `Vec<f64>`, `&[f64]`, `&[f32]`, `&[bool]` or a [`Tensor`].
    #[track_caller]
    pub fn constant(self, value: impl Into<Tensor>) -> Self {
        let value = value.into();
        self.apply("constant", |tape, _| captured(tape, value))
    }

    /// Takes a tensor of a datum as a constant.
    ///
    /// The evaluation fails if the datum has none of that name.
    #[track_caller]
    pub fn input(self, datum: &Datum, name: &str) -> Self {
        self.apply("input", |tape, _| {
            let tensor = datum.loss_fn_inputs().get(name);
            let tensor = tensor.ok_or_else(|| format!("the datum has no `{name}`"))?;
            let tensor = Tensor::try_from(tensor).map_err(|error| format!("`{name}`: {error}"))?;
            captured(tape, tensor)
        })
    }

    /// Returns the shape, unless the variable stands for a failure or is being traced.
    pub fn shape(self) -> Option<Shape> {
        match self.repr {
            Repr::Number(_) => Some(Shape::Scalar),
            Repr::Node(tape, node) => tape.shape(node),
            Repr::Failed(_) => None,
        }
    }

    /// Returns the value of a scalar, for metrics and for looking at.
    ///
    /// Anything else has no single value: it gives NaN, and the evaluation fails.
    #[track_caller]
    pub fn value(self) -> f64 {
        let tensor = self.read("value", |tensor| match tensor.shape() {
            Shape::Scalar => Ok(()),
            shape => Err(format!("a scalar is needed, not the shape {shape}")),
        });
        tensor.map_or(f64::NAN, |tensor| tensor.values()[0])
    }

    /// Returns all values, row by row; none if the variable stands for a failure.
    #[track_caller]
    pub fn values(self) -> Vec<f64> {
        let tensor = self.read("values", |_| Ok(()));
        tensor.map_or_else(Vec::new, Tensor::into_values)
    }

    /// Applies an operation to one variable on a tape. A plain number is not on one: it fails.
    #[track_caller]
    pub(super) fn apply(
        self,
        operation: &'static str,
        make: impl FnOnce(&'tape Tape, NodeIndex) -> Result<NodeIndex, String>,
    ) -> Self {
        Self::join(operation, &[self], |tape| match self.repr {
            Repr::Node(_, node) => make(tape, node),
            Repr::Number(_) | Repr::Failed(_) => Err(OUTSIDE.to_owned()),
        })
    }

    /// Applies an operation to variables, at least one of which must be on a tape.
    #[track_caller]
    pub(super) fn join(
        operation: &'static str,
        vars: &[Self],
        make: impl FnOnce(&'tape Tape) -> Result<NodeIndex, String>,
    ) -> Self {
        let at = Location::caller();
        let fault = Fault { operation, at };
        let mut tapes = vars.iter().filter_map(|var| match var.repr {
            Repr::Node(tape, _) => Some(tape),
            Repr::Number(_) | Repr::Failed(_) => None,
        });
        let earlier = vars.iter().find_map(|var| match var.repr {
            Repr::Failed(fault) => Some(fault),
            Repr::Number(_) | Repr::Node(..) => None,
        });
        let Some(tape) = tapes.next() else {
            return Self::failed(earlier.unwrap_or(fault));
        };
        if let Some(earlier) = earlier {
            tape.fail(earlier.error());
            return Self::failed(earlier);
        }
        let made = if tapes.all(|other| std::ptr::eq(tape, other)) {
            make(tape)
        } else {
            Err("the variables belong to different evaluations".to_owned())
        };
        match made {
            Ok(node) => Self::node(tape, node),
            Err(reason) => {
                tape.fail(ExpressionError::new(operation, at, reason));
                Self::failed(fault)
            }
        }
    }

    pub(super) fn node(tape: &'tape Tape, node: NodeIndex) -> Self {
        let repr = Repr::Node(tape, node);
        Self { repr }
    }

    fn failed(fault: Fault) -> Self {
        let repr = Repr::Failed(fault);
        Self { repr }
    }

    /// Looks at the value; one that cannot be looked at, or is refused, fails the evaluation.
    #[track_caller]
    fn read(
        self,
        operation: &'static str,
        check: impl FnOnce(&Tensor) -> Result<(), String>,
    ) -> Option<Tensor> {
        let (tape, node) = match self.repr {
            Repr::Number(number) => return Some(number.into()),
            Repr::Failed(_) => return None,
            Repr::Node(tape, node) => (tape, node),
        };
        let traced = || "a loss cannot look at values while it is traced".to_owned();
        let value = tape.value(node).ok_or_else(traced);
        let checked = value.and_then(|tensor| check(&tensor).map(|()| tensor));
        checked
            .map_err(|reason| {
                tape.fail(ExpressionError::new(operation, Location::caller(), reason));
            })
            .ok()
    }

    /// Returns the variable as an argument of operations on elements.
    pub(super) fn arg(self) -> Arg {
        match self.repr {
            Repr::Number(number) => Arg::Number(number),
            Repr::Node(_, node) => Arg::Node(node),
            Repr::Failed(_) => Arg::Number(f64::NAN),
        }
    }

    /// Returns the variable's place on a tape, putting a plain number there first.
    pub(super) fn place(self, tape: &Tape) -> Result<NodeIndex, String> {
        match self.arg() {
            Arg::Node(node) => Ok(node),
            Arg::Number(number) => captured(tape, number.into()),
        }
    }
}

const OUTSIDE: &str = "a plain number has no elements and belongs to no expression";

/// Puts numbers from outside onto a tape.
fn captured(tape: &Tape, value: Tensor) -> Result<NodeIndex, String> {
    if tape.traces() {
        return Err(
            "a traced loss can only use its inputs here, not numbers from outside".to_owned(),
        );
    }
    Ok(tape.constant(value))
}

/// Gives a vector next to a matrix a second dimension, so that it goes with the rows.
pub(super) fn align<const N: usize>(tape: &Tape, mut args: [Arg; N]) -> Result<[Arg; N], String> {
    let rank = |arg: Arg| match arg {
        Arg::Node(node) => tape.rank(node),
        Arg::Number(_) => 0,
    };
    if args.iter().any(|arg| rank(*arg) == 2) {
        for arg in &mut args {
            if let (Arg::Node(node), 1) = (*arg, rank(*arg)) {
                *arg = Arg::Node(tape.apply(Op::Column(node))?);
            }
        }
    }
    Ok(args)
}

impl From<f64> for Var<'_> {
    fn from(number: f64) -> Self {
        let repr = Repr::Number(number);
        Self { repr }
    }
}

impl From<&Self> for Var<'_> {
    fn from(var: &Self) -> Self {
        *var
    }
}

impl fmt::Debug for Var<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.repr {
            Repr::Number(number) => write!(f, "Var({number})"),
            Repr::Failed(_) => f.write_str("Var(failed)"),
            Repr::Node(tape, node) => match tape.value(node) {
                Some(value) => write!(f, "Var({} {:?})", value.shape(), value.values()),
                None => write!(f, "Var(traced, {} dimensions)", tape.rank(node)),
            },
        }
    }
}
