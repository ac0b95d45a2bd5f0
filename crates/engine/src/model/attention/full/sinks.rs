//! Gradients of sinks: scores that take probability and give no value.

use super::{FullAttention, FullAttentionKept};
use crate::kernels::softmax;
use crate::model::backward::Gradients;

impl FullAttention {
    /// Adds the gradients of the sinks, if they are trained: `−Σ p_sink (do · o)`.
    pub(super) fn sinks_backward(
        &self,
        kept: &FullAttentionKept,
        d_attended: &[f32],
        gradients: &mut Gradients<'_>,
    ) {
        let (query, d) = (self.query_width(), self.head_dim);
        let Some(sinks) = &self.sinks else { return };
        let Some(sums) = gradients.tensor(sinks.key) else {
            return;
        };
        let attended = kept.attended.as_mat();
        for (row, d_o) in d_attended.chunks_exact(query).enumerate() {
            let (o, lse) = attended.row(row).split_at(query);
            for (head, sum) in sums.iter_mut().enumerate() {
                let columns = head * d..(head + 1) * d;
                let mean = softmax::dot(&d_o[columns.clone()], &o[columns]);
                *sum -= (sinks.values[head] - lse[head]).exp() * mean;
            }
        }
    }
}
