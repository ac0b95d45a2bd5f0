//! Which tensors a run trains, and where their gradients go.
//!
//! The backward pass asks, by the keys of the model's [`TensorTable`], whether a gradient is wanted and
//! under which number. A LoRA run has `lora_A` and `lora_B` of some linear layers; a full run has every
//! weight of the model.

use std::sync::Arc;

use crate::model::tensor_table::{EMBEDDING, HEAD, Site, SiteKey, TensorKey, TensorTable};

/// The trained tensors of a run, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) tensors: Vec<Tensor>,
    /// The numbers of `A`, and of `B` as `r × outputs`, by [`SiteKey`]. Empty in a full run.
    lora: Vec<Option<[usize; 2]>>,
    /// Whether the model's own tensors are trained. Their numbers are then those of the table.
    full: bool,
    pub(crate) embedding: Option<usize>,
    /// The weight of the output head. If it is tied, this is the number after the last tensor.
    pub(crate) head: Option<usize>,
    /// Set when the head's gradient belongs to the embedding. Both keep a sum of their own until the
    /// optimizer step, so that the order of additions does not depend on how datums were batched.
    pub(crate) tied: bool,
}

/// A trained tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
}

impl Tensor {
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Slots {
    /// Lists the tensors of an adapter of some rank on the sites that `trains` chooses.
    pub(crate) fn lora(table: &TensorTable, rank: usize, trains: impl Fn(&Site) -> bool) -> Self {
        let mut slots = Self::default();
        for site in table.sites() {
            let pair = trains(site).then(|| slots.push_pair(site, rank));
            slots.lora.push(pair);
        }
        slots
    }

    fn push_pair(&mut self, site: &Site, rank: usize) -> [usize; 2] {
        let first = self.tensors.len();
        // `B` is kept the other way round than PEFT's, so that both gradients are sums of rows.
        for (name, width) in site
            .lora_names()
            .into_iter()
            .zip([site.inputs, site.outputs])
        {
            let shape = vec![rank, width];
            self.tensors.push(Tensor { name, shape });
        }
        [first, first + 1]
    }

    /// Lists every tensor of a model.
    pub(crate) fn full(table: &TensorTable) -> Self {
        let tensors: Vec<Tensor> = table
            .tensors()
            .iter()
            .map(|tensor| Tensor {
                name: tensor.names.hugging_face.clone(),
                shape: tensor.shape.clone(),
            })
            .collect();
        let number = |name: &str| table.tensor_key(name).map(|key| key.0);
        let head = number(&HEAD.in_model().weight().hugging_face);
        Self {
            lora: Vec::new(),
            full: true,
            embedding: number(&EMBEDDING.in_model().weight().hugging_face),
            head: head.or(Some(tensors.len())),
            tied: head.is_none(),
            tensors,
        }
    }

    /// Returns the numbers of the matrices of a site's adapter, if it is trained.
    pub(crate) fn of_site(&self, site: SiteKey) -> Option<[usize; 2]> {
        self.lora.get(site.0).copied().flatten()
    }

    /// Returns the number of one of the model's own tensors, if it is trained.
    pub(crate) fn of_tensor(&self, key: TensorKey) -> Option<usize> {
        self.full.then_some(key.0)
    }

    /// Returns the trained adapters in order: their sites, and the numbers of their matrices.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (SiteKey, [usize; 2])> {
        let keys = (0..).map(SiteKey);
        keys.zip(&self.lora)
            .filter_map(|(site, pair)| Some((site, (*pair)?)))
    }

    /// Makes the matrices of all trained adapters: `A`, and `B` as `r × outputs`.
    pub(crate) fn pair_values(
        &self,
        table: &TensorTable,
        values: impl Fn(&Site) -> (Vec<f32>, Vec<f32>),
    ) -> Vec<Arc<Vec<f32>>> {
        self.pairs()
            .flat_map(|(site, _)| {
                let (a, b) = values(&table.sites()[site.0]);
                [Arc::new(a), Arc::new(b)]
            })
            .collect()
    }

    /// Returns zeros for every gradient.
    pub(crate) fn zeros(&self) -> Vec<Vec<f32>> {
        let tied = self
            .embedding
            .filter(|_| self.tied)
            .map(|number| &self.tensors[number]);
        self.tensors
            .iter()
            .chain(tied)
            .map(|tensor| vec![0.0; tensor.elements()])
            .collect()
    }

    /// Returns the name of each gradient.
    pub(crate) fn gradient_name(&self, number: usize) -> String {
        match self.tensors.get(number) {
            Some(tensor) => tensor.name.clone(),
            None => HEAD.in_model().weight().hugging_face,
        }
    }
}
