//! Buffers that outlive a pass, so that the next one does not pay for fresh pages.

use std::sync::Mutex;

/// What one block keeps from its forward pass, a row a token.
///
/// Norms, rotated heads, the MLP's activation and probabilities are recomputed instead.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Input of the block.
    pub(crate) x: Vec<f32>, // rows × hidden
    /// Queries, keys and values before norm and rotation.
    pub(crate) qkv: Vec<f32>, // rows × (query + 2 kv)
    /// Output of attention, then the log-sum-exp of each head's scores.
    pub(crate) attended: Vec<f32>, // rows × (query + heads)
    /// Residual stream between attention and MLP.
    pub(crate) middle: Vec<f32>, // rows × hidden
    /// Gates, then values.
    pub(crate) gate_up: Vec<f32>, // rows × 2 ffn
    /// Inner activations of the adapters.
    pub(crate) u_qkv: Vec<f32>,
    pub(crate) u_output: Vec<f32>,
    pub(crate) u_gate_up: Vec<f32>,
    pub(crate) u_down: Vec<f32>,
}

/// Buffers that a block uses and forgets.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) normed: Vec<f32>,       // rows × hidden
    pub(crate) rotated: Vec<f32>,      // rows × (query + kv)
    pub(crate) activation: Vec<f32>,   // rows × ffn
    pub(crate) d_normed: Vec<f32>,     // rows × hidden
    pub(crate) d_attended: Vec<f32>,   // rows × query
    pub(crate) d_qkv: Vec<f32>,        // rows × (query + 2 kv)
    pub(crate) d_activation: Vec<f32>, // rows × ffn
    pub(crate) d_u: Vec<f32>,
    pub(crate) logits: Vec<f32>,
}

/// All buffers of a pass.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) kept: Vec<Kept>,
    /// Output of the last block.
    pub(crate) last: Vec<f32>,
    pub(crate) scratch: Scratch,
}

/// Workspaces that wait for their next use.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Workspace>>);

impl Pool {
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

/// Makes a buffer exactly `len` long; what it holds is left over from before.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}
