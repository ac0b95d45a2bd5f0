//! A norm's weight, and its passes over all rows.

use rayon::prelude::*;

use super::backward::Gradients;
use super::rows::rows_per_task;
use super::tensor_table::TensorKey;
use super::workspace::sized;
use crate::kernels::norm;

/// A root-mean-square norm.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) weight: Vec<f32>,
    pub(crate) key: TensorKey,
    pub(crate) eps: f32,
}

impl Norm {
    /// Normalises each row.
    pub(crate) fn forward(&self, x: &[f32], y: &mut Vec<f32>) {
        let width = self.weight.len();
        sized(y, x.len())
            .par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(width))
            .zip(x.par_chunks_exact(width))
            .for_each(|(y, x)| self.forward_row(x, y));
    }

    pub(crate) fn forward_row(&self, x: &[f32], y: &mut [f32]) {
        norm::forward(x, &self.weight, self.eps, y);
    }

    /// Adds the gradient of the input to `d`, and that of the weight to its sum if it is trained.
    pub(crate) fn backward(
        &self,
        x: &[f32],
        dy: &[f32],
        d: &mut [f32],
        gradients: &mut Gradients<'_>,
    ) {
        let (width, eps) = (self.weight.len(), self.eps);
        if let Some(sums) = gradients.tensor(self.key) {
            for (x, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width)) {
                norm::backward_weight(x, eps, dy, sums);
            }
        }
        d.par_chunks_exact_mut(width)
            .with_min_len(rows_per_task(width))
            .zip(x.par_chunks_exact(width).zip(dy.par_chunks_exact(width)))
            .for_each(|(d, (x, dy))| norm::backward(x, &self.weight, eps, dy, d));
    }
}
