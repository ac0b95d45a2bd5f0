//! Computing a recorded operation with those of the numeric tape.
//!
//! Ranks are checked first and apart from sizes: a trace knows the ranks of its inputs but not
//! their sizes, and its mistakes should surface when it is traced. Sizes are checked here, too, because
//! the numeric tape repeats any size of 1, as PyTorch does, and expressions do not: a vector of one
//! element beside one of three is more often a mistake than meant.

use super::op::{Arg, NodeIndex, Op};
use super::tensor::Shape;
use tinkrs_autodiff::{Binary, Dtype, Id, Tape, Tensor};

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

/// Computes an operation whose ranks have been checked. `place_of` tells where on the numeric tape
/// an earlier result stands.
///
/// # Errors
/// If sizes do not fit together, or a position lies outside.
pub(super) fn compute(
    op: &Op,
    tape: &mut Tape,
    place_of: impl Fn(NodeIndex) -> Id,
) -> Result<Id, String> {
    let computed = match op {
        Op::Input(_) | Op::Constant => {
            return Err("an input has the value that it is given".to_owned());
        }
        Op::Unary(function, x) => tape.unary(*function, place_of(*x)),
        Op::Binary(function, a, b) => {
            let [a, b] = sides(tape, [*a, *b], place_of);
            common_shape(shape(tape, a), shape(tape, b))?;
            tape.binary(*function, a, b)
        }
        Op::Select { mask, on, off } => {
            let [mask, on, off] = sides(tape, [*mask, *on, *off], place_of);
            let either = common_shape(shape(tape, on), shape(tape, off))?;
            common_shape(either, shape(tape, mask))?;
            tape.select(mask, on, off)
        }
        Op::Sum(x) => tape.sum(place_of(*x)),
        Op::Mean(x) => {
            let x = place_of(*x);
            let axes: Vec<_> = (0..tape.shape(x).len()).collect();
            tape.mean_along(x, &axes, false)
        }
        Op::SumLast(x) => {
            let x = place_of(*x);
            let last = last_axis(tape, x);
            tape.sum_along(x, &last, false)
        }
        Op::LogSumExp(x) => log_sum_exp(tape, place_of(*x)),
        Op::Dot(a, b) => {
            let (a, b) = (place_of(*a), place_of(*b));
            common_shape(shape(tape, a), shape(tape, b))?;
            let product = tape.binary(Binary::Mul, a, b);
            product.and_then(|product| tape.sum(product))
        }
        Op::Slice { of, start, end } => return slice(tape, place_of(*of), *start, *end),
        Op::Index { of, at } => return index(tape, place_of(*of), *at),
        Op::Concat(nodes) => {
            return concat(tape, nodes.iter().map(|node| place_of(*node)).collect());
        }
        Op::Stack(nodes) => tape.join(nodes.iter().map(|node| place_of(*node)).collect()),
        Op::Column(x) => {
            let x = place_of(*x);
            let rows = tape.tensor(x).len();
            tape.reshape(x, vec![rows, 1])
        }
        Op::Detach(x) => tape.detach(place_of(*x)),
    };
    computed.map_err(|error| error.to_string())
}

/// Returns the shape of a result, which has at most two dimensions.
pub(super) fn shape(tape: &Tape, id: Id) -> Shape {
    match *tape.shape(id) {
        [] => Shape::Scalar,
        [length] => Shape::Vector(length),
        [rows, columns, ..] => Shape::Matrix(rows, columns),
    }
}

/// Puts plain numbers onto the tape.
fn sides<const N: usize>(
    tape: &mut Tape,
    args: [Arg; N],
    place_of: impl Fn(NodeIndex) -> Id,
) -> [Id; N] {
    args.map(|arg| match arg {
        Arg::Node(node) => place_of(node),
        Arg::Number(number) => tape
            .constant(Tensor::scalar(number, Dtype::Float))
            .expect("a tape without a limit takes any number"),
    })
}

/// Finds the shape that both can be repeated to fill: a scalar fills any, a column all columns.
fn common_shape(a: Shape, b: Shape) -> Result<Shape, String> {
    let fills = |part: Shape, whole: Shape| match (part, whole) {
        _ if part == whole => true,
        (Shape::Scalar, _) => true,
        (Shape::Matrix(rows, 1), Shape::Matrix(all_rows, _)) => rows == all_rows,
        _ => false,
    };
    [a, b]
        .into_iter()
        .find(|whole| fills(a, *whole) && fills(b, *whole))
        .ok_or_else(|| format!("the shapes {a} and {b} do not fit together"))
}

/// The axis along which rows are reduced; none of a scalar, which is its own row.
fn last_axis(tape: &Tape, x: Id) -> Vec<usize> {
    let rank = tape.shape(x).len();
    rank.checked_sub(1).into_iter().collect()
}

/// Of no numbers it is the logarithm of 0.
fn log_sum_exp(tape: &mut Tape, x: Id) -> Result<Id, tinkrs_autodiff::Error> {
    let last = last_axis(tape, x);
    if shape(tape, x).columns() > 0 {
        return tape.logsumexp_along(x, &last, false);
    }
    let sum = tape.sum_along(x, &last, false)?;
    tape.unary(tinkrs_autodiff::Unary::Ln, sum)
}

fn slice(tape: &mut Tape, x: Id, start: Option<i64>, end: Option<i64>) -> Result<Id, String> {
    let (rows, columns) = rows_and_columns(shape(tape, x));
    let bounds = bound(start, 0, rows).zip(bound(end, rows, rows));
    let Some((from, to)) = bounds.filter(|(from, to)| from <= to) else {
        let show = |bound: Option<i64>| bound.map_or(String::new(), |bound| bound.to_string());
        return Err(format!(
            "{}..{} is not a range of {rows} elements",
            show(start),
            show(end)
        ));
    };
    let mut sizes = tape.shape(x).to_vec();
    match sizes.first_mut() {
        Some(first) => *first = to - from,
        None => sizes.push(to - from),
    }
    rows_of(tape, x, from * columns..to * columns, sizes)
}

fn index(tape: &mut Tape, x: Id, at: i64) -> Result<Id, String> {
    let (rows, columns) = rows_and_columns(shape(tape, x));
    let row = bound(Some(at), 0, rows)
        .filter(|row| *row < rows)
        .ok_or_else(|| format!("there is no element {at} among {rows}"))?;
    let sizes = tape.shape(x).get(1..).unwrap_or_default().to_vec();
    rows_of(tape, x, row * columns..(row + 1) * columns, sizes)
}

/// Takes cells that lie beside each other.
fn rows_of(
    tape: &mut Tape,
    x: Id,
    cells: std::ops::Range<usize>,
    sizes: Vec<usize>,
) -> Result<Id, String> {
    let cell = |cell| u32::try_from(cell).map_err(|_| "the tensor is too large".to_owned());
    let cells = cells.map(cell).collect::<Result<_, _>>()?;
    let taken = tape.take(x, cells, sizes);
    taken.map_err(|error| error.to_string())
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

fn concat(tape: &mut Tape, parts: Vec<Id>) -> Result<Id, String> {
    let mut whole: Option<Shape> = None;
    for part in &parts {
        whole = Some(match (whole, shape(tape, *part)) {
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
    }
    let joined = tape.join(parts).map_err(|error| error.to_string())?;
    match whole {
        Some(Shape::Matrix(rows, columns)) => tape
            .reshape(joined, vec![rows, columns])
            .map_err(|error| error.to_string()),
        Some(_) => Ok(joined),
        None => Err("takes at least one variable".to_owned()),
    }
}
