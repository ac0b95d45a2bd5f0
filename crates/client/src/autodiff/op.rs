//! The operations that an expression is recorded as.

use tinkrs_autodiff::{Binary, Unary};

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
