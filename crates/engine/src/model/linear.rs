//! One or several linear layers on the same rows, with their adapters, forward and back.
//!
//! ```text
//! U = X (s A)ᵀ        Y = X Wᵀ + b + U Bᵀ
//! dU = dY (s B)       dX = dY W + dU A        dB = dYᵀ U        dA = dUᵀ X
//! ```
//!
//! (`dU` carries the factor `s` that belongs to `A`.)
//!
//! The adapter is never merged into the weights: stored weights may be bf16, where a merged copy would
//! either round the adapter away or take twice the memory, and a batch may mix adapters when sampling.
//! Two skinny products cost `2 r (in + out)` operations a token, a few per cent at rank 16, and leave
//! one numeric path for training and sampling.

use std::ops::Range;

use rayon::prelude::*;

use super::backward::BackwardPass;
use super::rows::Rows;
use super::tensor_table::{SiteKey, TensorKey};
use super::workspace::sized;
use crate::adapter::{Adapter, Pair};
use crate::kernels::gemm::{Start, project, project_back};
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::panels::Panels;
use crate::weights::order::Order;

/// A frozen linear layer, which knows where its adapter and its gradients are.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) site: SiteKey,
    pub(crate) weight: Panels,
    pub(crate) weight_key: TensorKey,
    pub(crate) bias: Option<Bias>,
    /// The order of the weight's columns, which is the file's; inputs, gradients and adapters are in Hugging Face's.
    pub(crate) columns: Order,
}

#[derive(Debug)]
pub(crate) struct Bias {
    pub(crate) values: Vec<f32>,
    pub(crate) key: TensorKey,
}

/// Applies some linear layers to the same input, side by side: `y ← start + …`.
///
/// `u` receives the adapters' inner activations. When one adapter covers all rows, as in training, it
/// holds the columns of each adapted layer in turn, which the backward pass reads again.
pub(crate) fn forward(
    linears: &[&Linear],
    x: Mat<'_>,
    rows: &Rows<'_>,
    y: &mut [f32],
    start: Start,
    u: &mut Vec<f32>,
) {
    let width: usize = linears.iter().map(|linear| linear.weight.outputs()).sum();
    let biased = linears.iter().any(|linear| linear.bias.is_some());
    if biased {
        for row in y.chunks_exact_mut(width) {
            let mut rest = row;
            for linear in linears {
                let part;
                (part, rest) = rest.split_at_mut(linear.weight.outputs());
                start_row(part, linear.bias.as_ref(), start);
            }
        }
    }
    let start = if biased { Start::Keep } else { start };
    let weights: Vec<&Panels> = linears.iter().map(|linear| &linear.weight).collect();
    let ordered = in_order_of(linears, x);
    let seen = match &ordered {
        None => x,
        Some(ordered) => Mat::new(ordered, x.rows(), x.cols()),
    };
    project(seen, &weights, MatMut::new(y, x.rows(), width), start);

    add_adapters(rows, y, width, u, |range, adapter, y, u| {
        let mut pairs: Vec<(usize, &Pair)> = Vec::with_capacity(linears.len());
        let mut column = 0;
        for linear in linears {
            pairs.extend(adapter.pair(linear.site).map(|pair| (column, pair)));
            column += linear.weight.outputs();
        }
        let x = x.part(range.start, range.len());
        add_pairs(x, &pairs, y, width, u);
    });
}

/// The inputs in the order of a weight's columns, where that is another one. Such a layer comes alone.
fn in_order_of(linears: &[&Linear], x: Mat<'_>) -> Option<Vec<f32>> {
    let [linear] = linears else {
        debug_assert!(linears.iter().all(|linear| linear.columns == Order::Same));
        return None;
    };
    if linear.columns == Order::Same {
        return None;
    }
    let places: Vec<usize> = (0..x.cols())
        .map(|input| linear.columns.place(input))
        .collect();
    let mut ordered = vec![0.0; x.rows() * x.cols()];
    for (row, to) in ordered.chunks_exact_mut(x.cols()).enumerate() {
        let numbers = places.iter().zip(x.row(row));
        numbers.for_each(|(&place, &number)| to[place] = number);
    }
    Some(ordered)
}

/// Adds to the rows of each adapter of a batch. Products of single rows are too small to be shared by threads, so
/// where there are several adapters each thread takes whole ones; `u` is then not kept.
pub(crate) fn add_adapters(
    rows: &Rows<'_>,
    y: &mut [f32],
    width: usize,
    u: &mut Vec<f32>,
    add: impl Fn(Range<usize>, &Adapter, &mut [f32], &mut Vec<f32>) + Sync,
) {
    let mut parts = Vec::new();
    let (mut rest, mut at) = (y, 0);
    for (range, adapter) in rows.adapters() {
        let (_, from) = rest.split_at_mut((range.start - at) * width);
        let (part, after) = from.split_at_mut(range.len() * width);
        (rest, at) = (after, range.end);
        parts.push((range, adapter, part));
    }
    match &mut parts[..] {
        [] => {}
        [(range, adapter, y)] => add(range.clone(), adapter, y, u),
        several => several
            .par_iter_mut()
            .for_each_init(Vec::new, |u, (range, adapter, y)| {
                add(range.clone(), adapter, y, u);
            }),
    }
}

/// What the linear layers of one [`forward`] saw: input, inner activations, and gradient of the output.
pub(crate) struct Seen<'a> {
    pub(crate) x: Mat<'a>,
    pub(crate) u: &'a [f32],
    pub(crate) dy: Mat<'a>,
}

/// Undoes [`forward`]: adds to the gradients of what is trained, and writes that of the input if `dx` is
/// given.
pub(crate) fn backward(
    linears: &[&Linear],
    seen: &Seen<'_>,
    mut dx: Option<&mut [f32]>,
    pass: &mut BackwardPass<'_>,
) {
    let Seen { x, u, dy } = *seen;
    let (count, inputs) = (x.rows(), x.cols());
    let inner: usize = u.len() / count.max(1);
    let (mut column, mut u_column) = (0, 0);
    let mut start = Start::Zero;
    for linear in linears {
        let dy = dy.columns(column, linear.weight.outputs());
        column += linear.weight.outputs();
        if let Some(dx) = &mut dx {
            project_back(dy, &linear.weight, MatMut::new(dx, count, inputs), start);
            if linear.columns != Order::Same {
                debug_assert_eq!(linears.len(), 1, "others would have added to it");
                for row in dx.chunks_exact_mut(inputs) {
                    row.copy_from_slice(&linear.columns.restore(row, 1));
                }
            }
            start = Start::Keep;
        }
        pass.gradients.linear(linear, x, dy);
        let Some(pair) = pass.adapter.and_then(|adapter| adapter.pair(linear.site)) else {
            continue;
        };
        let rank = pair.down.outputs();
        project(
            dy,
            &[&pair.up_back],
            MatMut::new(sized(pass.d_u, count * rank), count, rank),
            Start::Zero,
        );
        let d_u = Mat::new(pass.d_u, count, rank);
        if let Some(dx) = &mut dx {
            project(
                d_u,
                &[&pair.down_back],
                MatMut::new(dx, count, inputs),
                Start::Keep,
            );
        }
        let u = Mat::new(u, count, inner).columns(u_column, rank);
        pass.gradients.pair(linear.site, x, u, dy, d_u);
        u_column += rank;
    }
}

/// Adds `s (x Aᵀ) Bᵀ` of each adapted layer to its columns of `y`.
pub(crate) fn add_pairs(
    x: Mat<'_>,
    pairs: &[(usize, &Pair)],
    y: &mut [f32],
    width: usize,
    u: &mut Vec<f32>,
) {
    if pairs.is_empty() {
        return;
    }
    let inner: usize = pairs.iter().map(|(_, pair)| pair.down.outputs()).sum();
    u.resize(x.rows() * inner, 0.0);
    let downs: Vec<&Panels> = pairs.iter().map(|(_, pair)| &pair.down).collect();
    project(x, &downs, MatMut::new(u, x.rows(), inner), Start::Zero);
    let mut from = 0;
    for (column, pair) in pairs {
        let (rank, outputs) = (pair.down.outputs(), pair.up.outputs());
        let u = Mat::new(u, x.rows(), inner).columns(from, rank);
        project(
            u,
            &[&pair.up],
            MatMut::new(y, x.rows(), width).columns(*column, outputs),
            Start::Keep,
        );
        from += rank;
    }
}

fn start_row(row: &mut [f32], bias: Option<&Bias>, start: Start) {
    let bias = bias.map(|bias| &bias.values[..]);
    match (bias, start) {
        (Some(bias), Start::Zero) => row.copy_from_slice(bias),
        (Some(bias), Start::Keep) => row.iter_mut().zip(bias).for_each(|(y, b)| *y += b),
        (None, Start::Zero) => row.fill(0.0),
        (None, Start::Keep) => {}
    }
}
