//! Buffers that outlive a pass, so that the next one does not pay for fresh pages.

use std::sync::Mutex;

use super::layer::{LayerBuffers, LayerKept};
use crate::kernels::matrix::Mat;

/// All buffers of a pass.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// What each layer keeps.
    pub(crate) kept: Vec<LayerKept>,
    /// Output of the last layer.
    pub(crate) last: Vec<f32>,
    pub(crate) buffers: LayerBuffers,
    /// Gradients of an adapter's inner activations.
    pub(crate) d_u: Vec<f32>,
    pub(crate) logits: Vec<f32>,
}

/// Workspaces that wait for their next use.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Workspace>>);

impl Pool {
    /// Frees the workspaces that wait.
    pub(crate) fn clear(&self) {
        if let Ok(mut pool) = self.0.lock() {
            *pool = Vec::new();
        }
    }

    /// Runs with a workspace of its own.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Workspace) -> R) -> R {
        let waiting = self.0.lock().map(|mut pool| pool.pop()).unwrap_or_default();
        let mut workspace = waiting.unwrap_or_default();
        let result = run(&mut workspace);
        if let Ok(mut pool) = self.0.lock() {
            pool.push(workspace);
        }
        result
    }
}

/// Rows of a fixed width that the forward pass keeps for the backward pass.
///
/// The width is also what the memory of a pass is computed from.
#[derive(Debug)]
pub(crate) struct KeptRows {
    width: usize,
    pub(crate) values: Vec<f32>,
}

impl KeptRows {
    pub(crate) fn new(width: usize) -> Self {
        Self {
            width,
            values: Vec::new(),
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Makes room for exactly so many rows; what they hold is left over from before.
    pub(crate) fn resize(&mut self, rows: usize) -> &mut [f32] {
        sized(&mut self.values, rows * self.width)
    }

    pub(crate) fn as_mat(&self) -> Mat<'_> {
        Mat::new(&self.values, self.values.len() / self.width, self.width)
    }

    pub(crate) fn bytes_per_row(&self) -> usize {
        self.width * size_of::<f32>()
    }
}

/// Makes a buffer exactly `len` long; what it holds is left over from before.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}
