//! Low-rank adapters: small trainable matrices beside the frozen ones.
//!
//! A linear layer `y = W x` becomes `y = W x + s B (A x)` with `A` of shape `[r, in]`, `B` of `[out, r]`
//! and `s = alpha / r`. `A` starts uniform in `±1/√in` (Kaiming with `a = √5`, as in PEFT) and `B` at
//! zero, so that a new adapter changes nothing.
//!
//! `alpha` is 32 by default, as Tinker's documentation uses, whatever the rank.
//!
//! An [`Adapter`] is packed for the kernels and never changes; a training run makes a new one after each
//! optimizer step. Ranks are padded with zeros to a multiple of 16, which adds exact zeros to the sums.

use std::fmt;

use rayon::prelude::*;

use crate::Error;
use crate::kernels::LANES;
use crate::kernels::panels::Panels;
use crate::model::Model;
use crate::model::tensor_table::{SiteKey, TensorTable};
use crate::peft::{LoraPair, PeftAdapter};
use crate::rng::{SplitMix64, fnv1a};

/// The default of `alpha`.
pub const DEFAULT_ALPHA: f32 = 32.0;

/// An adapter over a model, ready for training and sampling.
pub struct Adapter {
    rank: usize,
    alpha: f32,
    /// By [`SiteKey`]: the linear layers of the model, then its head.
    pairs: Vec<Option<Pair>>,
}

/// One site's adapter in the four forms that the passes read.
pub(crate) struct Pair {
    /// `s A`: from inputs to rank.
    pub(crate) down: Panels,
    /// `B`: from rank to outputs.
    pub(crate) up: Panels,
    /// `s Bᵀ`: from gradients of outputs to rank.
    pub(crate) up_back: Panels,
    /// `Aᵀ`: from gradients at rank to inputs.
    pub(crate) down_back: Panels,
}

impl Pair {
    /// Packs `a` (`r × inputs`) and `b` (`r × outputs`, the transpose of PEFT's).
    fn new(a: &[f32], b: &[f32], rank: usize, scale: f32) -> Self {
        let (inputs, outputs) = (a.len() / rank, b.len() / rank);
        let padded = rank.next_multiple_of(LANES);
        let a_at = |r: usize, i: usize| if r < rank { a[r * inputs + i] } else { 0.0 };
        let b_at = |r: usize, o: usize| if r < rank { b[r * outputs + o] } else { 0.0 };
        Self {
            down: Panels::from_f32(|r, i| scale * a_at(r, i), padded, inputs),
            up: Panels::from_f32(|o, r| b_at(r, o), outputs, padded),
            up_back: Panels::from_f32(|r, o| scale * b_at(r, o), padded, outputs),
            down_back: Panels::from_f32(|i, r| a_at(r, i), inputs, padded),
        }
    }
}

impl Adapter {
    /// Packs an adapter that was loaded from a PEFT folder.
    ///
    /// # Errors
    ///
    /// When a layer is not part of the model or a matrix has the wrong size.
    pub fn from_peft(model: &Model, adapter: &PeftAdapter) -> Result<Self, Error> {
        let mut parts = vec![None; model.table.sites().len()];
        for (name, pair) in &adapter.layers {
            let Some(key) = model.table.site_key(name) else {
                return Err(Error::unsupported(
                    "adapted layer",
                    name,
                    "the model's linear layers and lm_head",
                ));
            };
            let site = &model.table.sites()[key.0];
            for (part, got, expected) in [
                ("lora_A", pair.a.len(), site.inputs),
                ("lora_B", pair.b.len(), site.outputs),
            ] {
                if adapter.rank == 0 || got != adapter.rank * expected {
                    let tensor = format!("{part} of {name}");
                    return Err(Error::Shape {
                        tensor,
                        expected: vec![adapter.rank, expected],
                        got: vec![got],
                    });
                }
            }
            parts[key.0] = Some((&pair.a, transpose(&pair.b, site.outputs, adapter.rank)));
        }
        let parts = |site: SiteKey| {
            let (a, b) = parts[site.0].as_ref()?;
            Some((a.as_slice(), b.as_slice()))
        };
        Ok(model
            .threads
            .run(|| Self::pack(&model.table, adapter.rank, adapter.alpha, parts)))
    }

    /// Packs the sites that have `parts`: `A` and the transpose of `B`.
    pub(crate) fn pack<'p>(
        table: &TensorTable,
        rank: usize,
        alpha: f32,
        parts: impl Fn(SiteKey) -> Option<(&'p [f32], &'p [f32])> + Sync,
    ) -> Self {
        let scale = alpha / rank as f32;
        let pairs = (0..table.sites().len())
            .into_par_iter()
            .map(|site| parts(SiteKey(site)).map(|(a, b)| Pair::new(a, b, rank, scale)))
            .collect();
        Self { rank, alpha, pairs }
    }

    /// Returns the rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns `alpha`; the adapter's products are scaled by `alpha / rank`.
    #[must_use]
    pub fn alpha(&self) -> f32 {
        self.alpha
    }

    pub(crate) fn pair(&self, site: SiteKey) -> Option<&Pair> {
        self.pairs[site.0].as_ref()
    }

    /// Whether it has a place for each site of the model, as an adapter of that model does.
    pub(crate) fn fits(&self, model: &Model) -> bool {
        self.pairs.len() == model.table.sites().len()
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("rank", &self.rank)
            .field("alpha", &self.alpha)
            .finish_non_exhaustive()
    }
}

/// Turns rows into columns.
pub(crate) fn transpose(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols)
        .map(|i| values[i % rows * cols + i / rows])
        .collect()
}

/// Makes the initial `A` of a layer: uniform in `±1/√inputs`, from a seed and the layer's name.
pub(crate) fn initial_a(seed: u64, name: &str, rank: usize, inputs: usize) -> Vec<f32> {
    // The name is mixed into the seed so that sites differ and adding one changes no other.
    let mut rng = SplitMix64::new(fnv1a(seed, name));
    let bound = 1.0 / (inputs as f32).sqrt();
    (0..rank * inputs)
        .map(|_| bound * rng.symmetric())
        .collect()
}

/// Turns an adapter's parameters into what PEFT stores.
pub(crate) fn to_peft_pair(a: &[f32], b: &[f32], rank: usize) -> LoraPair {
    LoraPair {
        a: a.to_vec(),
        b: transpose(b, rank, b.len() / rank),
    }
}
