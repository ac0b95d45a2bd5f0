//! The backward pass: from the gradient of the last layer's output to the gradients of what is trained.
//!
//! Layers are undone in reverse. Gradients of parameters continue the sums they are given, in the order
//! of rows; activations are recomputed where that is cheap.

use super::Model;
use super::forward::LayerAngles;
use super::linear::Linear;
use super::rows::Rows;
use super::tensor_table::{SiteKey, TensorKey};
use super::workspace::Workspace;
use crate::adapter::Adapter;
use crate::kernels::gemm::outer;
use crate::kernels::matrix::{Mat, MatMut};
use crate::train::slots::Slots;

/// A batch on its way back through the decoder layers.
pub(crate) struct BackwardPass<'a> {
    pub(crate) rows: &'a Rows<'a>,
    pub(crate) angles: LayerAngles,
    pub(crate) adapter: Option<&'a Adapter>,
    pub(crate) gradients: Gradients<'a>,
    /// Gradients of an adapter's inner activations, of one linear layer at a time.
    pub(crate) d_u: &'a mut Vec<f32>,
}

/// The sums that the backward pass continues.
pub(crate) struct Gradients<'a> {
    pub(crate) slots: &'a Slots,
    pub(crate) values: &'a mut [Vec<f32>],
}

impl Gradients<'_> {
    /// The sum of a tensor's gradients, if it is trained.
    pub(crate) fn tensor(&mut self, key: TensorKey) -> Option<&mut Vec<f32>> {
        self.slots.of_tensor(key).map(|slot| &mut self.values[slot])
    }

    /// Adds the gradients of a site's adapter, if it is trained.
    pub(crate) fn pair(
        &mut self,
        site: SiteKey,
        x: Mat<'_>,
        u: Mat<'_>,
        dy: Mat<'_>,
        d_u: Mat<'_>,
    ) {
        let Some([a, b]) = self.slots.of_site(site) else {
            return;
        };
        let rank = self.slots.tensors[a].shape[0];
        outer(
            u.columns(0, rank),
            dy,
            MatMut::new(&mut self.values[b], rank, dy.cols()),
        );
        outer(
            d_u.columns(0, rank),
            x,
            MatMut::new(&mut self.values[a], rank, x.cols()),
        );
    }

    /// Adds the gradients of a linear layer's weight and bias, if they are trained.
    pub(crate) fn linear(&mut self, linear: &Linear, x: Mat<'_>, dy: Mat<'_>) {
        if let Some(sums) = self.tensor(linear.weight_key) {
            outer(dy, x, MatMut::new(sums, dy.cols(), x.cols()));
        }
        let bias = linear.bias.as_ref();
        if let Some(sums) = bias.and_then(|bias| self.tensor(bias.key)) {
            for row in 0..dy.rows() {
                sums.iter_mut()
                    .zip(dy.row(row))
                    .for_each(|(sum, dy)| *sum += dy);
            }
        }
    }
}

impl Model {
    /// Goes back through all layers, from the gradient of the last one's output.
    ///
    /// The workspace must hold the batch's forward pass; its kept values are used up.
    pub(crate) fn backward(
        &self,
        tokens: &[u32],
        rows: &Rows<'_>,
        adapter: Option<&Adapter>,
        workspace: &mut Workspace,
        mut d: Vec<f32>,
        gradients: &mut Gradients<'_>,
    ) {
        let Workspace {
            kept, buffers, d_u, ..
        } = workspace;
        let mut pass = BackwardPass {
            rows,
            angles: self.angles(rows),
            adapter,
            gradients: Gradients {
                slots: gradients.slots,
                values: gradients.values,
            },
            d_u,
        };
        let to_embedding = pass.gradients.slots.embedding;
        for (index, layer) in self.layers.iter().enumerate().rev() {
            // Nothing below the first layer is trained by an adapter.
            let needs_input = index > 0 || to_embedding.is_some();
            layer.backward(&mut pass, &mut kept[index], buffers, &mut d, needs_input);
        }
        if let Some(slot) = to_embedding {
            let hidden = self.config.hidden;
            let sums = &mut pass.gradients.values[slot];
            for (&token, d) in tokens.iter().zip(d.chunks_exact(hidden)) {
                let sums = &mut sums[token as usize * hidden..][..hidden];
                let scale = self.embedding_scale().unwrap_or(1.0);
                sums.iter_mut()
                    .zip(d)
                    .for_each(|(sum, d)| *sum += d * scale);
            }
        }
    }
}
