//! Computing the value of a recorded operation from the values before it.
//!
//! Ranks are checked first and apart from sizes: a trace knows the ranks of its inputs but not
//! their sizes, and its mistakes should surface when it is traced.

use super::op::{Arg, Binary, NodeIndex, Op, Unary};
use super::tensor::{Shape, Tensor};

/// Returns the number of dimensions of an operation's result.
///
/// # Errors
/// If the operation cannot take arguments with these numbers of dimensions.
pub(super) fn rank(op: &Op, rank_of: impl Fn(NodeIndex) -> u8) -> Result<u8, String> {
    let of_arg = |arg: Arg| match arg {
        Arg::Node(node) => rank_of(node),
        Arg::Number(_) => 0,
    };
    let at_least_vector = |node| match rank_of(node) {
        0 => Err("a scalar has no elements to pick from".to_owned()),
        rank => Ok(rank),
    };
    match op {
        Op::Input(_) | Op::Constant => Err("an input has the rank that it is given".to_owned()),
        Op::Unary(_, node) | Op::Detach(node) => Ok(rank_of(*node)),
        Op::Binary(_, a, b) => Ok(of_arg(*a).max(of_arg(*b))),
        Op::Select { mask, on, off } => Ok(of_arg(*mask).max(of_arg(*on)).max(of_arg(*off))),
        Op::Sum(_) | Op::Mean(_) => Ok(0),
        Op::SumLast(node) | Op::LogSumExp(node) => Ok(rank_of(*node).saturating_sub(1)),
        Op::Dot(a, b) => match (rank_of(*a), rank_of(*b)) {
            (1, 1) => Ok(0),
            (a, b) => Err(format!("takes two vectors, not {a} and {b} dimensions")),
        },
        Op::Slice { of, .. } => at_least_vector(*of),
        Op::Index { of, .. } => at_least_vector(*of).map(|rank| rank - 1),
        Op::Concat(nodes) => {
            let mut ranks = nodes.iter().map(|node| rank_of(*node));
            match ranks.next() {
                None => Err("takes at least one variable".to_owned()),
                Some(0) => Err("takes vectors or matrices; scalars can be stacked".to_owned()),
                Some(first) if ranks.all(|rank| rank == first) => Ok(first),
                Some(_) => Err("takes only vectors or only matrices".to_owned()),
            }
        }
        Op::Stack(nodes) if nodes.is_empty() => Err("takes at least one scalar".to_owned()),
        Op::Stack(nodes) => match nodes
            .iter()
            .map(|node| rank_of(*node))
            .find(|rank| *rank != 0)
        {
            None => Ok(1),
            Some(rank) => Err(format!("takes scalars, not {rank} dimensions")),
        },
        Op::Column(node) => match rank_of(*node) {
            1 => Ok(2),
            rank => Err(format!("takes a vector, not {rank} dimensions")),
        },
    }
}

/// Computes an operation whose ranks have been checked.
///
/// # Errors
/// If sizes do not fit together, or a position lies outside.
pub(super) fn evaluate<'tape>(
    op: &Op,
    value_of: impl Fn(NodeIndex) -> &'tape Tensor,
) -> Result<Tensor, String> {
    match op {
        Op::Input(_) | Op::Constant => Err("an input has the value that it is given".to_owned()),
        Op::Unary(function, node) => Ok(unary(*function, value_of(*node))),
        Op::Binary(function, a, b) => binary(
            *function,
            &Side::of(*a, &value_of),
            &Side::of(*b, &value_of),
        ),
        Op::Select { mask, on, off } => {
            let [mask, on, off] = [mask, on, off].map(|arg| Side::of(*arg, &value_of));
            select(&mask, &on, &off)
        }
        Op::Sum(node) => Ok(value_of(*node).values().iter().sum::<f64>().into()),
        Op::Mean(node) => {
            let values = value_of(*node).values();
            Ok((values.iter().sum::<f64>() / values.len() as f64).into())
        }
        Op::SumLast(node) => Ok(by_row(value_of(*node), |row| row.iter().sum())),
        Op::LogSumExp(node) => Ok(by_row(value_of(*node), log_sum_exp)),
        Op::Dot(a, b) => {
            let product = binary(
                Binary::Mul,
                &Side::Tensor(value_of(*a)),
                &Side::Tensor(value_of(*b)),
            )?;
            Ok(product.values().iter().sum::<f64>().into())
        }
        Op::Slice { of, start, end } => slice(value_of(*of), *start, *end),
        Op::Index { of, at } => index(value_of(*of), *at),
        Op::Concat(nodes) => concat(nodes.iter().map(|node| value_of(*node))),
        Op::Stack(nodes) => {
            let scalars = nodes.iter().flat_map(|node| value_of(*node).values());
            Ok(scalars.copied().collect::<Vec<f64>>().into())
        }
        Op::Column(node) => {
            let tensor = value_of(*node);
            Ok(Tensor::filled(
                Shape::Matrix(tensor.shape().len(), 1),
                tensor.values().to_vec(),
            ))
        }
        Op::Detach(node) => Ok(value_of(*node).clone()),
    }
}

/// A side of an operation on elements, repeated along the dimensions that it lacks.
pub(super) enum Side<'tape> {
    Number(f64),
    Tensor(&'tape Tensor),
}

impl<'tape> Side<'tape> {
    pub(super) fn of(arg: Arg, value_of: impl Fn(NodeIndex) -> &'tape Tensor) -> Self {
        match arg {
            Arg::Number(number) => Self::Number(number),
            Arg::Node(node) => Self::Tensor(value_of(node)),
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Number(_) => Shape::Scalar,
            Self::Tensor(tensor) => tensor.shape(),
        }
    }

    pub(super) fn at(&self, place: Place, cell: usize) -> f64 {
        match self {
            Self::Number(number) => *number,
            Self::Tensor(tensor) => tensor.values()[place.of(cell)],
        }
    }
}

/// Which element of a repeated tensor stands in a cell of the result.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Same,
    /// A scalar stands in all cells.
    First,
    /// A matrix of one column stands in all of this many columns.
    Row(usize),
}

impl Place {
    pub(super) fn of(self, cell: usize) -> usize {
        match self {
            Self::Same => cell,
            Self::First => 0,
            Self::Row(columns) => cell / columns,
        }
    }

    /// Finds how a tensor of shape `part` is repeated to fill `whole`, if it can be.
    pub(super) fn within(part: Shape, whole: Shape) -> Option<Self> {
        match (part, whole) {
            _ if part == whole => Some(Self::Same),
            (Shape::Scalar, _) => Some(Self::First),
            (Shape::Matrix(rows, 1), Shape::Matrix(all_rows, columns)) if rows == all_rows => {
                Some(Self::Row(columns))
            }
            _ => None,
        }
    }
}

/// Finds the shape that both can be repeated to fill.
fn common_shape(a: Shape, b: Shape) -> Result<Shape, String> {
    let fits = |whole| Place::within(a, whole).is_some() && Place::within(b, whole).is_some();
    [a, b]
        .into_iter()
        .find(|whole| fits(*whole))
        .ok_or_else(|| format!("the shapes {a} and {b} do not fit together"))
}

fn place(side: &Side<'_>, whole: Shape) -> Place {
    Place::within(side.shape(), whole).unwrap_or(Place::First)
}

fn unary(function: Unary, x: &Tensor) -> Tensor {
    let values = x.values().iter().map(|value| function.value(*value));
    Tensor::filled(x.shape(), values.collect())
}

fn binary(function: Binary, a: &Side<'_>, b: &Side<'_>) -> Result<Tensor, String> {
    let shape = common_shape(a.shape(), b.shape())?;
    let (in_a, in_b) = (place(a, shape), place(b, shape));
    let cell = |cell| function.value(a.at(in_a, cell), b.at(in_b, cell));
    Ok(Tensor::filled(shape, (0..shape.len()).map(cell).collect()))
}

fn select(mask: &Side<'_>, on: &Side<'_>, off: &Side<'_>) -> Result<Tensor, String> {
    let shape = common_shape(common_shape(on.shape(), off.shape())?, mask.shape())?;
    let (in_mask, in_on, in_off) = (place(mask, shape), place(on, shape), place(off, shape));
    let cell = |cell| {
        if mask.at(in_mask, cell) != 0.0 {
            on.at(in_on, cell)
        } else {
            off.at(in_off, cell)
        }
    };
    Ok(Tensor::filled(shape, (0..shape.len()).map(cell).collect()))
}

/// Reduces each row to a number. A matrix without columns still has its rows.
fn by_row(x: &Tensor, reduce: impl Fn(&[f64]) -> f64) -> Tensor {
    let (shape, columns) = (x.shape().without_last(), x.shape().columns());
    let row = |row: usize| reduce(&x.values()[row * columns..(row + 1) * columns]);
    Tensor::filled(shape, (0..shape.len()).map(row).collect())
}

/// Subtracts the largest value first, so that no exponential overflows.
fn log_sum_exp(values: &[f64]) -> f64 {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max.is_infinite() {
        // Infinity minus infinity is not a number.
        return if values.iter().any(|value| value.is_nan()) {
            f64::NAN
        } else {
            max
        };
    }
    let sum: f64 = values.iter().map(|value| (value - max).exp()).sum();
    max + sum.ln()
}

fn slice(x: &Tensor, start: Option<i64>, end: Option<i64>) -> Result<Tensor, String> {
    let (rows, columns) = rows_and_columns(x.shape());
    let bounds = bound(start, 0, rows).zip(bound(end, rows, rows));
    let Some((from, to)) = bounds.filter(|(from, to)| from <= to) else {
        let show = |bound: Option<i64>| bound.map_or(String::new(), |bound| bound.to_string());
        return Err(format!(
            "{}..{} is not a range of {rows} elements",
            show(start),
            show(end)
        ));
    };
    let shape = match x.shape() {
        Shape::Matrix(..) => Shape::Matrix(to - from, columns),
        Shape::Vector(_) | Shape::Scalar => Shape::Vector(to - from),
    };
    let values = &x.values()[from * columns..to * columns];
    Ok(Tensor::filled(shape, values.to_vec()))
}

/// Returns where a slice starts in the flat values.
pub(super) fn slice_offset(shape: Shape, start: Option<i64>) -> usize {
    let (rows, columns) = rows_and_columns(shape);
    bound(start, 0, rows).unwrap_or(0) * columns
}

fn index(x: &Tensor, at: i64) -> Result<Tensor, String> {
    let (rows, columns) = rows_and_columns(x.shape());
    let row = bound(Some(at), 0, rows)
        .filter(|row| *row < rows)
        .ok_or_else(|| format!("there is no element {at} among {rows}"))?;
    let values = &x.values()[row * columns..(row + 1) * columns];
    match x.shape() {
        Shape::Matrix(..) => Ok(values.to_vec().into()),
        Shape::Vector(_) | Shape::Scalar => Ok(values.iter().sum::<f64>().into()),
    }
}

/// Splits a shape into its first dimension and the size of what stands behind it.
fn rows_and_columns(shape: Shape) -> (usize, usize) {
    match shape {
        Shape::Scalar => (1, 1),
        Shape::Vector(length) => (length, 1),
        Shape::Matrix(rows, columns) => (rows, columns),
    }
}

/// Resolves a position that may count from the end, if it lies inside or right behind.
fn bound(position: Option<i64>, default: usize, length: usize) -> Option<usize> {
    let Some(position) = position else {
        return Some(default);
    };
    let resolved = match usize::try_from(position) {
        Ok(from_start) => from_start,
        Err(_) => length.checked_sub(usize::try_from(position.unsigned_abs()).ok()?)?,
    };
    (resolved <= length).then_some(resolved)
}

fn concat<'tape>(parts: impl Iterator<Item = &'tape Tensor>) -> Result<Tensor, String> {
    let mut shape: Option<Shape> = None;
    let mut values = Vec::new();
    for part in parts {
        shape = Some(match (shape, part.shape()) {
            (None, first) => first,
            (Some(Shape::Vector(length)), Shape::Vector(more)) => Shape::Vector(length + more),
            (Some(Shape::Matrix(rows, columns)), Shape::Matrix(more, same)) if columns == same => {
                Shape::Matrix(rows + more, columns)
            }
            (Some(before), part) => {
                return Err(format!(
                    "the shapes {before} and {part} do not fit together"
                ));
            }
        });
        values.extend_from_slice(part.values());
    }
    let shape = shape.ok_or("takes at least one variable")?;
    Ok(Tensor::filled(shape, values))
}
