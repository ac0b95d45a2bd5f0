//! The record of what an expression computed.
//!
//! Each operation is computed as it is appended, on the numeric tape beside it, which takes the
//! gradients. A tape that traces appends operations without values: it learns what a loss does, not
//! what it gives.
//!
//! Operators cannot return a `Result` and still read like arithmetic, so a tape remembers its
//! first [`ExpressionError`] and every later operation passes the failure on. The caller that evaluates
//! the expression asks the tape for it.

use super::compute::{compute, rank, shape};
use super::op::{NodeIndex, Op};
use super::tensor::{Shape, Tensor};
use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use tinkrs_autodiff::Id;

/// Why an expression has no value: the operation, where it was written, and what is wrong.
///
/// ```
/// use tinkrs::Datum;
/// use tinkrs::autodiff;
///
/// let data = [Datum::supervised(vec![1, 2], [2, 3], [1.0, 1.0])?];
/// let loss = autodiff::loss(|_, logprobs| {
///     let weights = logprobs[0].constant(vec![1.0, 1.0, 1.0]);
///     Ok(((logprobs[0] * weights).sum(), Default::default()))
/// });
/// let error = loss(&data, &[&[-0.5, -1.5]]).unwrap_err().to_string();
/// assert!(error.starts_with("`*` at "), "{error}");
/// assert!(error.ends_with("the shapes [2] and [3] do not fit together"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    operation: &'static str,
    at: &'static Location<'static>,
    reason: String,
}

impl ExpressionError {
    pub(super) fn new(operation: &'static str, at: Caller, reason: impl Into<String>) -> Self {
        Self {
            operation,
            at,
            reason: reason.into(),
        }
    }

    /// Returns the operation, spelled as in the code.
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// Returns where the operation was written.
    pub fn location(&self) -> &'static Location<'static> {
        self.at
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            at,
            reason,
        } = self;
        write!(f, "`{operation}` at {at}: {reason}")
    }
}

impl std::error::Error for ExpressionError {}

/// Where in the caller's code an operation is written.
pub(super) type Caller = &'static Location<'static>;

/// A recorded operation and what is known of its result.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) rank: u8,
    /// Where its value stands on the numeric tape; absent on a tape that traces.
    place: Option<Id>,
    /// Whether it depends on an input that gradients are taken by.
    pub(super) needs_gradient: bool,
}

/// The operations of one expression, in the order in which they were made.
pub(super) struct Tape {
    traces: bool,
    nodes: RefCell<Vec<Node>>,
    numeric: RefCell<tinkrs_autodiff::Tape>,
    error: RefCell<Option<ExpressionError>>,
}

impl Tape {
    /// Makes a tape that computes.
    pub(super) fn new() -> Self {
        Self {
            traces: false,
            nodes: RefCell::default(),
            numeric: RefCell::default(),
            error: RefCell::default(),
        }
    }

    /// Makes a tape that only records.
    pub(super) fn tracing() -> Self {
        Self {
            traces: true,
            ..Self::new()
        }
    }

    pub(super) fn traces(&self) -> bool {
        self.traces
    }

    /// Appends an input that gradients are taken by.
    pub(super) fn input(&self, value: Tensor) -> NodeIndex {
        let op = Op::Input(self.nodes.borrow().len());
        self.append_value(op, value, true)
    }

    /// Appends an input of a trace.
    pub(super) fn placeholder(&self, rank: u8, needs_gradient: bool) -> NodeIndex {
        let op = Op::Input(self.nodes.borrow().len());
        self.append(op, rank, None, needs_gradient)
    }

    /// Appends numbers that no gradient is taken by.
    pub(super) fn constant(&self, value: Tensor) -> NodeIndex {
        self.append_value(Op::Constant, value, false)
    }

    /// Appends an operation on earlier ones.
    ///
    /// # Errors
    /// If its arguments do not fit. The error is not recorded yet.
    pub(super) fn apply(&self, op: Op) -> Result<NodeIndex, String> {
        let nodes = self.nodes.borrow();
        let rank = rank(&op, |node| nodes[node].rank)?;
        let place = if self.traces {
            None
        } else {
            let place_of = |node: NodeIndex| {
                let place = nodes[node].place;
                place.expect("a tape that computes has every value")
            };
            Some(compute(&op, &mut self.numeric.borrow_mut(), place_of)?)
        };
        let needs_gradient =
            op.arguments().any(|node| nodes[node].needs_gradient) && !matches!(op, Op::Detach(_));
        drop(nodes);
        Ok(self.append(op, rank, place, needs_gradient))
    }

    /// Records a failure, unless there was one before: later ones follow from the first.
    pub(super) fn fail(&self, error: ExpressionError) {
        self.error.borrow_mut().get_or_insert(error);
    }

    pub(super) fn error(&self) -> Option<ExpressionError> {
        self.error.borrow().clone()
    }

    pub(super) fn rank(&self, node: NodeIndex) -> u8 {
        self.nodes.borrow()[node].rank
    }

    /// Returns a shape, unless the tape only records.
    pub(super) fn shape(&self, node: NodeIndex) -> Option<Shape> {
        let place = self.nodes.borrow()[node].place;
        place.map(|place| shape(&self.numeric.borrow(), place))
    }

    /// Returns a value, unless the tape only records.
    pub(super) fn value(&self, node: NodeIndex) -> Option<Tensor> {
        let place = self.nodes.borrow()[node].place?;
        let numeric = self.numeric.borrow();
        let values = numeric.tensor(place).values.clone();
        Some(Tensor::filled(shape(&numeric, place), values))
    }

    /// Returns the derivatives of a scalar by the first `inputs` nodes, where it depends on them.
    pub(super) fn gradients(&self, loss: NodeIndex, inputs: usize) -> Vec<Option<Vec<f64>>> {
        let nodes = self.nodes.borrow();
        let Some(loss) = nodes[loss].place else {
            return vec![None; inputs];
        };
        let mut slopes = self.numeric.borrow().gradients(loss);
        let mut slope_of = |node: &Node| node.place.and_then(|place| slopes[place].take());
        nodes.iter().take(inputs).map(&mut slope_of).collect()
    }

    pub(super) fn into_nodes(self) -> Vec<Node> {
        self.nodes.into_inner()
    }

    fn append_value(&self, op: Op, value: Tensor, needs_gradient: bool) -> NodeIndex {
        let rank = value.shape().rank();
        let mut numeric = self.numeric.borrow_mut();
        let value = value.into_numeric();
        let place = if needs_gradient {
            numeric.variable(value)
        } else {
            numeric.constant(value)
        };
        let place = place.expect("a tape without a limit takes any tensor of two dimensions");
        drop(numeric);
        self.append(op, rank, Some(place), needs_gradient)
    }

    fn append(&self, op: Op, rank: u8, place: Option<Id>, needs_gradient: bool) -> NodeIndex {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(Node {
            op,
            rank,
            place,
            needs_gradient,
        });
        nodes.len() - 1
    }
}
