//! One or several linear layers on the same rows, with their adapters.
//!
//! ```text
//! U = X (s A)ᵀ        Y = X Wᵀ + b + U Bᵀ
//! ```
//!
//! The adapter is never merged into the weights: stored weights may be bf16, where a merged copy would
//! either round the adapter away or take twice the memory, and a batch may mix adapters when sampling.
//! Two skinny products cost `2 r (in + out)` operations a token, a few per cent at rank 16, and leave
//! one numeric path for training and sampling.

use super::rows::Rows;
use super::{Model, Site};
use crate::adapter::Pair;
use crate::kernels::gemm::{Start, project};
use crate::kernels::matrix::{Mat, MatMut};
use crate::kernels::panels::Panels;

/// A frozen linear layer.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Panels,
    pub(crate) bias: Option<Vec<f32>>,
}

impl Model {
    /// Applies some layers of one block to the same input, side by side: `y ← start + …`.
    ///
    /// `u` receives the adapters' inner activations. When one adapter covers all rows, as in training,
    /// it holds the columns of each adapted layer in turn, which the backward pass reads again.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of a pass, spelled out"
    )]
    pub(crate) fn apply(
        &self,
        layer: usize,
        sites: &[Site],
        x: Mat<'_>,
        rows: &Rows<'_>,
        y: &mut [f32],
        start: Start,
        u: &mut Vec<f32>,
    ) {
        let linears = &self.layers[layer].linears;
        let linear = |site: &Site| &linears[*site as usize];
        let width: usize = sites.iter().map(|site| linear(site).weight.outputs()).sum();
        let biased = sites.iter().any(|site| linear(site).bias.is_some());
        if biased {
            for row in y.chunks_exact_mut(width) {
                let mut rest = row;
                for site in sites {
                    let part;
                    (part, rest) = rest.split_at_mut(linear(site).weight.outputs());
                    start_row(part, linear(site).bias.as_deref(), start);
                }
            }
        }
        let start = if biased { Start::Keep } else { start };
        let weights: Vec<&Panels> = sites.iter().map(|site| &linear(site).weight).collect();
        project(x, &weights, MatMut::new(y, x.rows(), width), start);

        for (range, adapter) in rows.adapters() {
            let mut pairs: Vec<(usize, &Pair)> = Vec::with_capacity(sites.len());
            let mut column = 0;
            for site in sites {
                pairs.extend(adapter.pair(layer, *site).map(|pair| (column, pair)));
                column += linear(site).weight.outputs();
            }
            let x = x.part(range.start, range.len());
            add_pairs(
                x,
                &pairs,
                &mut y[range.start * width..range.end * width],
                width,
                u,
            );
        }
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

fn start_row(row: &mut [f32], bias: Option<&[f32]>, start: Start) {
    match (bias, start) {
        (Some(bias), Start::Zero) => row.copy_from_slice(bias),
        (Some(bias), Start::Keep) => row.iter_mut().zip(bias).for_each(|(y, b)| *y += b),
        (None, Start::Zero) => row.fill(0.0),
        (None, Start::Keep) => {}
    }
}
