//! Gradients of recorded operations, from the last to the first.
//!
//! For a loss `L` and an operation `y = f(x)` the rule is always `dL/dx += dL/dy · df/dx`, summed
//! over the cells in which an element of `x` is used. Operations are recorded behind what they
//! use, so one walk from the end to the start has every `dL/dy` complete when it is needed.

use super::forward::{Place, Side, slice_offset};
use super::op::{Arg, NodeIndex, Op};
use super::tape::Node;
use super::tensor::{Shape, Tensor};

/// `dL/dy` of each operation so far, where there is one.
type Slopes = Vec<Option<Vec<f64>>>;

/// Computes the derivatives of the scalar at `loss` by the inputs among `nodes`.
///
/// An operation that the loss does not depend on has none. `nodes` must have values.
pub(super) fn gradients(nodes: &[Node], loss: NodeIndex) -> Slopes {
    let mut slopes: Slopes = vec![None; nodes.len()];
    slopes[loss] = Some(vec![1.0]);
    for index in (0..=loss).rev() {
        let node = &nodes[index];
        if !node.needs_gradient || matches!(node.op, Op::Input(_)) {
            continue;
        }
        // Taken, not borrowed: nothing reads it again, and long sequences make it large.
        if let (Some(slope), Some(value)) = (slopes[index].take(), &node.value) {
            propagate(nodes, &mut slopes, node, value, &slope);
        }
    }
    slopes
}

fn propagate(nodes: &[Node], slopes: &mut Slopes, node: &Node, value: &Tensor, slope: &[f64]) {
    match &node.op {
        Op::Input(_) | Op::Constant | Op::Detach(_) => {}
        Op::Unary(function, x) => {
            add(nodes, slopes, *x, |x, into| {
                let cells = x.iter().zip(value.values()).zip(slope);
                for (slot, ((x, y), slope)) in into.iter_mut().zip(cells) {
                    *slot += chain(*slope, function.slope(*x, *y));
                }
            });
        }
        Op::Binary(function, a, b) => {
            let side = |arg| Side::of(arg, |node: NodeIndex| value_of(nodes, node));
            let (left, right) = (side(*a), side(*b));
            let places = [*a, *b].map(|arg| place(nodes, arg, value.shape()));
            let slopes_at =
                |cell: usize| function.slopes(left.at(places[0], cell), right.at(places[1], cell));
            add_repeated(nodes, slopes, *a, value.shape(), |cell| {
                chain(slope[cell], slopes_at(cell).0)
            });
            add_repeated(nodes, slopes, *b, value.shape(), |cell| {
                chain(slope[cell], slopes_at(cell).1)
            });
        }
        Op::Select { mask, on, off } => {
            let in_mask = place(nodes, *mask, value.shape());
            let mask = Side::of(*mask, |node: NodeIndex| value_of(nodes, node));
            let picked = |cell: usize, wanted: bool| {
                if (mask.at(in_mask, cell) != 0.0) == wanted {
                    slope[cell]
                } else {
                    0.0
                }
            };
            add_repeated(nodes, slopes, *on, value.shape(), |cell| picked(cell, true));
            add_repeated(nodes, slopes, *off, value.shape(), |cell| {
                picked(cell, false)
            });
        }
        Op::Sum(x) => add(nodes, slopes, *x, |_, into| {
            into.iter_mut().for_each(|slot| *slot += slope[0]);
        }),
        Op::Mean(x) => add(nodes, slopes, *x, |_, into| {
            let share = slope[0] / into.len() as f64;
            into.iter_mut().for_each(|slot| *slot += share);
        }),
        Op::SumLast(x) => {
            let columns = value_of(nodes, *x).shape().columns();
            add(nodes, slopes, *x, |_, into| {
                for (cell, slot) in into.iter_mut().enumerate() {
                    *slot += slope[cell / columns];
                }
            });
        }
        Op::LogSumExp(x) => {
            let columns = value_of(nodes, *x).shape().columns();
            add(nodes, slopes, *x, |x, into| {
                for (cell, slot) in into.iter_mut().enumerate() {
                    let row = cell / columns;
                    *slot += chain(slope[row], (x[cell] - value.values()[row]).exp());
                }
            });
        }
        Op::Dot(a, b) => {
            for (one, other) in [(*a, *b), (*b, *a)] {
                let other = value_of(nodes, other).values();
                add(nodes, slopes, one, |_, into| {
                    let cells = into.iter_mut().zip(other);
                    cells.for_each(|(slot, other)| *slot += chain(slope[0], *other));
                });
            }
        }
        Op::Slice { of, start, .. } => {
            let offset = slice_offset(value_of(nodes, *of).shape(), *start);
            add_at(nodes, slopes, *of, offset, slope);
        }
        Op::Index { of, at } => {
            let offset = slice_offset(value_of(nodes, *of).shape(), Some(*at));
            add_at(nodes, slopes, *of, offset, slope);
        }
        Op::Concat(parts) | Op::Stack(parts) => {
            let mut rest = slope;
            for part in parts {
                let (own, behind) = rest.split_at(value_of(nodes, *part).shape().len());
                add_at(nodes, slopes, *part, 0, own);
                rest = behind;
            }
        }
        Op::Column(x) => add_at(nodes, slopes, *x, 0, slope),
    }
}

/// Multiplies the slope of the loss with that of an operation.
///
/// What the loss does not depend on stays out of its gradient, even where the operation's slope
/// is infinite or not a number: otherwise an element that [`Op::Select`] left out would spoil it.
fn chain(outer: f64, inner: f64) -> f64 {
    if outer == 0.0 { 0.0 } else { outer * inner }
}

/// Adds to the slopes of a node, if it needs any. `update` gets its values and its slopes.
fn add(
    nodes: &[Node],
    slopes: &mut Slopes,
    node: NodeIndex,
    update: impl FnOnce(&[f64], &mut [f64]),
) {
    if nodes[node].needs_gradient {
        let values = value_of(nodes, node).values();
        let into = slopes[node].get_or_insert_with(|| vec![0.0; values.len()]);
        update(values, into);
    }
}

/// Adds a run of slopes, starting at `offset`.
fn add_at(nodes: &[Node], slopes: &mut Slopes, node: NodeIndex, offset: usize, run: &[f64]) {
    add(nodes, slopes, node, |_, into| {
        let cells = into[offset..].iter_mut().zip(run);
        cells.for_each(|(slot, slope)| *slot += slope);
    });
}

/// Adds the slopes of all cells in which each element of a side was used.
fn add_repeated(
    nodes: &[Node],
    slopes: &mut Slopes,
    side: Arg,
    shape: Shape,
    slope_at: impl Fn(usize) -> f64,
) {
    if let Arg::Node(node) = side {
        let place = place(nodes, side, shape);
        add(nodes, slopes, node, |_, into| {
            (0..shape.len()).for_each(|cell| into[place.of(cell)] += slope_at(cell));
        });
    }
}

fn place(nodes: &[Node], side: Arg, whole: Shape) -> Place {
    let part = match side {
        Arg::Number(_) => Shape::Scalar,
        Arg::Node(node) => value_of(nodes, node).shape(),
    };
    Place::within(part, whole).unwrap_or(Place::First)
}

fn value_of(nodes: &[Node], node: NodeIndex) -> &Tensor {
    nodes[node]
        .value
        .as_ref()
        .expect("gradients are only taken on a tape that computes values")
}
