//! The forward pass of packed rows, layer by layer.
//!
//! Training and sampling run the same code; they differ in where attention finds earlier keys, and in
//! whether what a layer [keeps](LayerKept) stays for the backward pass.

use rayon::prelude::*;

use super::Model;
use super::attention::Past;
use super::layer::LayerKept;
use super::rows::{Rows, rows_per_task};
use super::workspace::{Workspace, sized};
use crate::config::LayerKind;
use crate::kernels::rope::Angles;

/// A batch on its way through the decoder layers.
pub(crate) struct ForwardPass<'a> {
    pub(crate) rows: &'a Rows<'a>,
    pub(crate) angles: LayerAngles,
    pub(crate) past: Past<'a>,
}

/// The rotations of a pass, by the kind of layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerAngles {
    full: Angles,
    sliding: Angles,
}

impl LayerAngles {
    pub(crate) fn of(&self, kind: LayerKind) -> &Angles {
        match kind {
            // Layers with a state know positions without angles.
            LayerKind::Full | LayerKind::Delta => &self.full,
            LayerKind::Sliding => &self.sliding,
        }
    }
}

impl Model {
    /// Runs all layers over a batch and keeps what the backward pass needs; `workspace.last` receives
    /// the output of the last layer.
    pub(crate) fn forward_keeping(
        &self,
        tokens: &[u32],
        rows: &Rows<'_>,
        workspace: &mut Workspace,
    ) {
        let mut pass = self.forward_pass(rows, Past::Rows);
        let Workspace {
            kept,
            last,
            buffers,
            ..
        } = workspace;
        kept.resize_with(self.config.layers, || LayerKept::new(&self.config));
        if let Some(first) = kept.first_mut() {
            self.embed(tokens, &mut first.x.values);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let (before, after) = kept.split_at_mut(index + 1);
            let next = after
                .first_mut()
                .map_or(&mut *last, |kept| &mut kept.x.values);
            layer.forward(&mut pass, &mut before[index], next, buffers);
        }
    }

    /// Runs all layers over a batch and forgets everything but the result and what went to the caches.
    pub(crate) fn forward_once<'a>(
        &self,
        tokens: &[u32],
        rows: &'a Rows<'a>,
        workspace: &mut Workspace,
        past: Past<'a>,
    ) {
        let mut pass = self.forward_pass(rows, past);
        let Workspace {
            kept,
            last,
            buffers,
            ..
        } = workspace;
        if kept.is_empty() {
            kept.push(LayerKept::new(&self.config));
        }
        let kept = &mut kept[0];
        self.embed(tokens, &mut kept.x.values);
        for layer in &self.layers {
            layer.forward(&mut pass, kept, last, buffers);
            std::mem::swap(&mut kept.x.values, last);
        }
        std::mem::swap(&mut kept.x.values, last);
    }

    /// Returns how much memory one token of a training pass keeps until it has gone back, adapters
    /// aside.
    pub(crate) fn kept_bytes_per_token(&self) -> usize {
        self.config.layers * LayerKept::new(&self.config).bytes_per_row()
    }

    fn forward_pass<'a>(&self, rows: &'a Rows<'a>, past: Past<'a>) -> ForwardPass<'a> {
        ForwardPass {
            rows,
            angles: self.angles(rows),
            past,
        }
    }

    pub(crate) fn angles(&self, rows: &Rows<'_>) -> LayerAngles {
        let positions = rows.positions().iter().max().map_or(0, |last| last + 1);
        let full = self.rope.up_to(positions);
        let local = self.local_rope.as_ref();
        LayerAngles {
            sliding: local.map_or_else(|| full.clone(), |local| local.up_to(positions)),
            full,
        }
    }

    /// What embeddings are multiplied by, if the model does that.
    pub(crate) fn embedding_scale(&self) -> Option<f32> {
        let scaled = self.config.features.scaled_embedding;
        scaled.then(|| (self.config.hidden as f64).sqrt() as f32)
    }

    fn embed(&self, tokens: &[u32], x: &mut Vec<f32>) {
        let hidden = self.config.hidden;
        sized(x, tokens.len() * hidden)
            .par_chunks_exact_mut(hidden)
            .with_min_len(rows_per_task(hidden))
            .zip(tokens)
            .for_each(|(row, &token)| {
                self.embedding.row(token as usize, row);
                if let Some(scale) = self.embedding_scale() {
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            });
    }
}
