//! Training runs: gradients accumulate until an optimizer step uses them.
//!
//! One call of [`TrainingRun::forward_backward`] goes through the crate like this: [`batch`] checks the
//! datums and cuts them into groups that fit in memory; [`forward`](crate::model) computes hidden states
//! and keeps what is needed to go back; the head turns them into log-probabilities; a
//! [`loss`](crate::loss) turns those into derivatives; head and layers go back and continue the run's
//! gradient sums. [`TrainingRun::optim_step`] hands the sums to the [`Optimizer`] and packs the new
//! parameters.
//!
//! Invariants: an operation that fails has changed nothing. Calling `forward_backward` for some datums
//! and then for others equals calling it once for all of them, bit for bit.

pub(crate) mod batch;
pub(crate) mod pass;
pub(crate) mod slots;
mod state;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use tinkrs_types::training::{OptimStepOutput, OptimizerParams};
use tinkrs_types::{Datum, ForwardBackwardOutput, LoraConfig};

use crate::adapter::{self, Adapter, DEFAULT_ALPHA};
use crate::loss::Objective;
use crate::model::tensor_table::{SiteGroup, SiteKey, TensorTable};
use crate::optim::{Optimizer, Trained};
use crate::peft::PeftAdapter;
use crate::weights::WeightSource;
use crate::{Error, Model, Precision, Threads};
use batch::Batch;
use pass::Pass;
use slots::Slots;

pub use state::{FullWeights, TrainState};

/// Parameters in training over a model: an adapter, or all weights of a small model.
///
/// ```
/// use std::sync::Arc;
/// use tinkrs_engine::types::{AdamParams, Datum, LoraConfig, LossFn};
/// use tinkrs_engine::weights::{Dtype, RandomWeights};
/// use tinkrs_engine::{Model, ModelConfig, Precision, Threads, TrainingRun};
///
/// let source = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::Bf16)?;
/// let model = Arc::new(Model::load(&source, Precision::Stored, &Threads::new(2)?)?);
/// let mut run = TrainingRun::lora(model, &LoraConfig { seed: Some(0), ..LoraConfig::new(8) })?;
///
/// let datum = Datum::from_prompt_completion(&[1, 5], &[9, 2])?;
/// let before = run.forward_backward(&[datum.clone()], &LossFn::CrossEntropy)?.loss();
/// run.optim_step(&AdamParams::new(1e-2))?;
/// let after = run.forward(&[datum], &LossFn::CrossEntropy)?.loss();
/// assert!(after < before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TrainingRun {
    model: Arc<Model>,
    kind: Kind,
    slots: Slots,
    values: Vec<Arc<Vec<f32>>>,
    /// Sums of gradients since the last step; empty when there are none.
    gradients: Vec<Vec<f32>>,
    optimizer: Optimizer,
}

#[derive(Debug)]
enum Kind {
    Lora {
        rank: usize,
        alpha: f32,
        adapter: Arc<Adapter>,
    },
    Full,
}

impl TrainingRun {
    /// Starts an adapter that changes nothing yet. `alpha` is [`DEFAULT_ALPHA`].
    ///
    /// Without a seed, the initial weights are those of seed 0.
    ///
    /// # Errors
    ///
    /// When the rank is zero or nothing is to be trained.
    pub fn lora(model: Arc<Model>, config: &LoraConfig) -> Result<Self, Error> {
        Self::lora_with_alpha(model, config, DEFAULT_ALPHA)
    }

    /// Starts an adapter with an `alpha` of its own.
    ///
    /// # Errors
    ///
    /// When the rank is zero, nothing is to be trained, or `alpha` is not finite.
    pub fn lora_with_alpha(
        model: Arc<Model>,
        config: &LoraConfig,
        alpha: f32,
    ) -> Result<Self, Error> {
        config.check()?;
        if !alpha.is_finite() {
            return Err(Error::invalid("alpha", format!("{alpha} is not finite")));
        }
        let rank = config.rank as usize;
        let slots = lora_slots(&model, config);
        let seed = config.seed.unwrap_or(0).cast_unsigned();
        let values = slots.pair_values(&model.table, |site| {
            let a = adapter::initial_a(seed, &site.name, rank, site.inputs);
            (a, vec![0.0; rank * site.outputs])
        });
        Ok(Self::with_adapter(model, slots, values, rank, alpha))
    }

    /// Goes on with an adapter that was loaded from a PEFT folder, with a fresh optimizer.
    ///
    /// # Errors
    ///
    /// When a layer is not part of the model or a matrix has the wrong size.
    pub fn from_peft(model: Arc<Model>, adapter: &PeftAdapter) -> Result<Self, Error> {
        Adapter::from_peft(&model, adapter)?;
        let rank = adapter.rank;
        let slots = Slots::lora(&model.table, rank, |site| {
            adapter.layers.contains_key(&site.name)
        });
        let values = slots.pair_values(&model.table, |site| {
            let pair = &adapter.layers[&site.name];
            let b = adapter::transpose(&pair.b, site.outputs, rank);
            (pair.a.clone(), b)
        });
        Ok(Self::with_adapter(
            model,
            slots,
            values,
            rank,
            adapter.alpha,
        ))
    }

    fn with_adapter(
        model: Arc<Model>,
        slots: Slots,
        values: Vec<Arc<Vec<f32>>>,
        rank: usize,
        alpha: f32,
    ) -> Self {
        let adapter = Arc::new(pack(&model, &slots, &values, rank, alpha));
        let kind = Kind::Lora {
            rank,
            alpha,
            adapter,
        };
        Self {
            model,
            kind,
            slots,
            values,
            gradients: Vec::new(),
            optimizer: Optimizer::default(),
        }
    }

    /// Starts training all weights of a model, in single precision.
    ///
    /// # Errors
    ///
    /// When the weights cannot be loaded.
    pub fn full(source: &dyn WeightSource, threads: &Threads) -> Result<Self, Error> {
        source.config().validate()?;
        let table = Arc::new(TensorTable::new(source.config()));
        let slots = Slots::full(&table);
        let read = |tensor: &slots::Tensor| {
            let values = source
                .tensor(&tensor.name)?
                .expect_shape(&tensor.shape)?
                .to_f32();
            Ok::<_, Error>(Arc::new(values))
        };
        let values = slots.tensors.iter().map(read);
        let values: Vec<Arc<Vec<f32>>> = values.collect::<Result<_, Error>>()?;
        // Not from the source, which may have columns in another order: the sums of a run that is taken up again are
        // in the order of these.
        let names = slots.tensors.iter().map(|tensor| tensor.name.clone());
        let weights = FullWeights {
            config: source.config().clone(),
            table,
            tensors: names.zip(values.iter().cloned()).collect(),
        };
        let model = Arc::new(Model::load(&weights, Precision::F32, threads)?);
        Ok(Self {
            model,
            kind: Kind::Full,
            slots,
            values,
            gradients: Vec::new(),
            optimizer: Optimizer::default(),
        })
    }

    /// Trains with another optimizer than the default one.
    #[must_use]
    pub fn with_optimizer(mut self, optimizer: Optimizer) -> Self {
        self.optimizer = optimizer;
        self
    }

    /// Computes a loss and log-probabilities without touching the gradients.
    ///
    /// # Errors
    ///
    /// Bad input, named by datum and position, a custom loss that cannot be computed, or a result that
    /// is not finite.
    pub fn forward(
        &self,
        data: &[Datum],
        objective: impl Into<Objective>,
    ) -> Result<ForwardBackwardOutput, Error> {
        let batch = Batch::new(&self.model, data.into(), objective.into())?;
        let mut pass = self.begin(batch, false);
        while !self.advance(&mut pass, usize::MAX)? {}
        Ok(pass.finish(&self.slots)?.0)
    }

    /// Computes a loss and log-probabilities, and adds the loss's gradients to the sums.
    ///
    /// # Errors
    ///
    /// Bad input, named by datum and position, or a result or gradient that is not finite. The sums are
    /// then what they were before the call.
    pub fn forward_backward(
        &mut self,
        data: &[Datum],
        objective: impl Into<Objective>,
    ) -> Result<ForwardBackwardOutput, Error> {
        let batch = Batch::new(&self.model, data.into(), objective.into())?;
        let mut pass = self.begin(batch, true);
        while !self.advance(&mut pass, usize::MAX)? {}
        self.finish(pass)
    }

    /// Begins a pass, with sums of gradients of its own.
    ///
    /// They begin as a copy of the run's sums and replace them when the pass has succeeded. Starting at
    /// zero and adding at the end would need no copy, but would add in another order: the sums would no
    /// longer be, bit for bit, those of all datums in one call. The first pass after a step copies nothing.
    pub(crate) fn begin(&self, batch: Batch, backward: bool) -> Pass {
        let sums = backward.then(|| {
            if self.gradients.is_empty() {
                self.slots.zeros()
            } else {
                self.gradients.clone()
            }
        });
        Pass::new(batch, sums)
    }

    /// Computes the next examples of a pass that began with the parameters and gradients of this moment.
    /// Returns whether those were the last.
    pub(crate) fn advance(&self, pass: &mut Pass, max_tokens: usize) -> Result<bool, Error> {
        let (model, adapter) = (&self.model, self.adapter_ref());
        let threads = &model.threads;
        threads.run(|| pass.advance(model, adapter, &self.slots, max_tokens))
    }

    /// Takes the gradients of a pass whose examples are all computed.
    pub(crate) fn finish(&mut self, pass: Pass) -> Result<ForwardBackwardOutput, Error> {
        let (output, sums) = pass.finish(&self.slots)?;
        if let Some(sums) = sums {
            self.gradients = sums;
        }
        Ok(output)
    }

    /// Updates the parameters with the gradients summed since the last step, and forgets those.
    ///
    /// Metrics: `grad_norm` and `grad_norm_clipped` (before and after clipping), `update_norm`,
    /// `optimizer_step`.
    ///
    /// # Errors
    ///
    /// Settings out of range, or a gradient or updated parameter that is not finite; nothing has changed
    /// then.
    pub fn optim_step(
        &mut self,
        params: impl Into<OptimizerParams>,
    ) -> Result<OptimStepOutput, Error> {
        let params = params.into();
        let zeros = if self.gradients.is_empty() {
            self.slots.zeros()
        } else {
            Vec::new()
        };
        // Without gradients, the parameters still decay and the moments fade.
        let gradients = if zeros.is_empty() {
            &self.gradients
        } else {
            &zeros
        };
        let mut sums: Vec<Cow<'_, [f32]>> = gradients.iter().map(Cow::from).collect();
        if let Some((embedding, head)) = self
            .slots
            .embedding
            .filter(|_| self.slots.tied)
            .zip(sums.pop_if(|_| self.slots.tied))
        {
            sums[embedding]
                .to_mut()
                .iter_mut()
                .zip(head.iter())
                .for_each(|(sum, head)| *sum += head);
        }
        let threads = self.model.threads.clone();
        let norms = threads.run(|| {
            let mut trained: Vec<Trained<'_>> =
                (self.slots.tensors.iter().zip(&mut self.values).zip(&sums))
                    .map(|((tensor, values), gradient)| Trained {
                        name: &tensor.name,
                        values: Arc::make_mut(values).as_mut_slice(),
                        gradient,
                    })
                    .collect();
            self.optimizer.step(&params, &mut trained)
        })?;
        self.gradients.clear();
        self.repack()?;
        let metrics = BTreeMap::from([
            ("grad_norm".to_owned(), norms.gradient),
            ("grad_norm_clipped".to_owned(), norms.clipped_gradient),
            ("update_norm".to_owned(), norms.update),
            // Not `step`: loops add these to numbers of their own, and that one they have already.
            ("optimizer_step".to_owned(), self.optimizer.steps() as f64),
        ]);
        Ok(OptimStepOutput::new(Some(metrics)))
    }

    /// Makes the kernels' copy of the parameters anew.
    fn repack(&mut self) -> Result<(), Error> {
        match &mut self.kind {
            Kind::Lora {
                rank,
                alpha,
                adapter,
            } => {
                let (model, slots, values) = (&self.model, &self.slots, &self.values);
                *adapter = Arc::new(
                    model
                        .threads
                        .run(|| pack(model, slots, values, *rank, *alpha)),
                );
            }
            Kind::Full => {
                let weights = self.full_weights().expect("a full run has all weights");
                self.model = Arc::new(Model::load(&weights, Precision::F32, &self.model.threads)?);
            }
        }
        Ok(())
    }

    fn adapter_ref(&self) -> Option<&Adapter> {
        match &self.kind {
            Kind::Lora { adapter, .. } => Some(adapter),
            Kind::Full => None,
        }
    }

    /// Returns the model: the frozen base of an adapter, or the trained weights as they are now.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the adapter as it is now, ready for sampling; `None` in a full run.
    #[must_use]
    pub fn adapter(&self) -> Option<Arc<Adapter>> {
        match &self.kind {
            Kind::Lora { adapter, .. } => Some(Arc::clone(adapter)),
            Kind::Full => None,
        }
    }

    /// Returns the adapter in the form that PEFT stores; `None` in a full run.
    #[must_use]
    pub fn to_peft(&self, base_model: &str) -> Option<PeftAdapter> {
        let Kind::Lora { rank, alpha, .. } = self.kind else {
            return None;
        };
        let layers = self.slots.pairs().map(|(site, [a, b])| {
            let name = self.model.table.sites()[site.0].name.clone();
            let pair = adapter::to_peft_pair(&self.values[a], &self.values[b], rank);
            (name, pair)
        });
        Some(PeftAdapter {
            base_model: base_model.to_owned(),
            rank,
            alpha,
            layers: layers.collect(),
        })
    }

    /// Returns all trained weights, to be saved or loaded as a model; `None` in a LoRA run.
    #[must_use]
    pub fn full_weights(&self) -> Option<FullWeights> {
        let names = self.slots.tensors.iter().map(|tensor| tensor.name.clone());
        matches!(self.kind, Kind::Full).then(|| FullWeights {
            config: self.model.config.clone(),
            table: Arc::clone(&self.model.table),
            tensors: names.zip(self.values.iter().cloned()).collect(),
        })
    }

    /// Returns the rank and the parts of an adapter that are trained; `None` in a full run.
    #[must_use]
    pub fn lora_config(&self) -> Option<LoraConfig> {
        let Kind::Lora { rank, .. } = self.kind else {
            return None;
        };
        let trains = |group: SiteGroup| {
            let mut sites = self.model.table.sites().iter().enumerate();
            sites.any(|(key, site)| {
                site.group == group && self.slots.of_site(SiteKey(key)).is_some()
            })
        };
        Some(LoraConfig {
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
            seed: None,
            train_unembed: trains(SiteGroup::Head),
            train_mlp: trains(SiteGroup::FeedForward),
            train_attn: trains(SiteGroup::Attention),
        })
    }

    /// Returns the shapes of the tensors that an adapter of a model would train.
    pub(crate) fn lora_shapes(model: &Model, config: &LoraConfig) -> Vec<Vec<usize>> {
        let slots = lora_slots(model, config);
        let shapes = slots.tensors.into_iter().map(|tensor| tensor.shape);
        shapes.collect()
    }

    /// Returns the number of optimizer steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Returns the number of trained parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.slots.tensors.iter().map(slots::Tensor::elements).sum()
    }
}

fn lora_slots(model: &Model, config: &LoraConfig) -> Slots {
    Slots::lora(&model.table, config.rank as usize, |site| {
        match site.group {
            SiteGroup::Attention => config.train_attn,
            SiteGroup::FeedForward => config.train_mlp,
            SiteGroup::Head => config.train_unembed,
        }
    })
}

fn pack(
    model: &Model,
    slots: &Slots,
    values: &[Arc<Vec<f32>>],
    rank: usize,
    alpha: f32,
) -> Adapter {
    Adapter::pack(&model.table, rank, alpha, |site| {
        let [a, b] = slots.of_site(site)?;
        Some((values[a].as_slice(), values[b].as_slice()))
    })
}
