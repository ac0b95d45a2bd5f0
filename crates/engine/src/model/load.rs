//! Packing a model's weights, once, at load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::Model;
use super::digest::Digest;
use super::layer::Layer;
use super::linear::{Bias, Linear};
use super::norm::Norm;
use super::numerics::{Numerics, Plan};
use super::tensor_table::{EMBEDDING, FINAL_NORM, FullNames, HEAD, Names, TensorKey, TensorTable};
use super::workspace::Pool;
use crate::config::Features;
use crate::kernels::cached::CacheFormat;
use crate::kernels::isa;
use crate::kernels::panels::Panels;
use crate::kernels::rope;
use crate::weights::WeightSource;
use crate::weights::order::Order;
use crate::{Error, ModelConfig, Threads};

impl Model {
    /// Reads and packs all weights, one at a time, in the [precision](super::Precision) that is asked for. A
    /// mapped file is let go of on the way, so that no weight is in memory twice.
    ///
    /// # Errors
    ///
    /// When a tensor is missing, has the wrong shape (the error names both), or cannot be read, and when
    /// `TINKRS_KERNELS` names instructions that there are not.
    pub fn load(
        source: &dyn WeightSource,
        numerics: impl Into<Numerics>,
        threads: &Threads,
    ) -> Result<Self, Error> {
        isa::check()?;
        source.config().validate()?;
        let table = Arc::new(TensorTable::new(source.config()));
        let plan = Plan::new(source, &table, numerics.into())?;
        threads.run(|| {
            let reader = Reader {
                source,
                config: source.config(),
                plan: &plan,
                table: &table,
                digests: table.tensors().iter().map(|_| AtomicU64::new(0)).collect(),
            };
            reader.model(&table, threads)
        })
    }
}

struct Reader<'a> {
    source: &'a dyn WeightSource,
    config: &'a ModelConfig,
    plan: &'a Plan,
    table: &'a TensorTable,
    /// Of each tensor, once it was read: which thread reads it when is chance.
    digests: Vec<AtomicU64>,
}

/// Reads what a decoder layer has declared, by name.
pub(crate) struct LayerReader<'a> {
    reader: &'a Reader<'a>,
    /// Index of the layer.
    pub(crate) layer: usize,
}

impl Reader<'_> {
    fn model(&self, table: &Arc<TensorTable>, threads: &Threads) -> Result<Model, Error> {
        let config = self.config;
        // The largest first: while one is packed it is in memory twice, the second time as pages of its file.
        let head = if config.tied_head {
            None
        } else {
            Some(self.matrix(&HEAD.in_model())?.0)
        };
        let embedding = self.matrix(&EMBEDDING.in_model())?.0;
        let layers = (0..config.layers)
            .into_par_iter()
            .map(|layer| {
                let reader = LayerReader {
                    reader: self,
                    layer,
                };
                Layer::load(config, &reader)
            })
            .collect::<Result<_, _>>()?;
        let final_norm = self.norm(&FINAL_NORM.in_model())?;
        Ok(Model {
            config: config.clone(),
            threads: threads.clone(),
            table: Arc::clone(table),
            plan: self.plan.clone(),
            digest: self.digest(),
            embedding,
            layers,
            final_norm,
            head,
            rope: rope::Table::new(&config.rope, config.head_dim),
            local_rope: config
                .features
                .local_rope
                .as_ref()
                .map(|rope| rope::Table::new(rope, config.head_dim)),
            workspaces: Pool::default(),
        })
    }

    fn matrix(&self, names: &FullNames) -> Result<(Panels, TensorKey), Error> {
        let (panels, key, _) = self.ordered_matrix(names)?;
        Ok((panels, key))
    }

    /// Reads a matrix whose columns may be in another order.
    fn ordered_matrix(&self, names: &FullNames) -> Result<(Panels, TensorKey, Order), Error> {
        let names = names.weight();
        let (key, shape) = self.declared(&names);
        let tensor = self.source.stored(&names.hugging_face)?;
        if tensor.shape() != shape {
            return Err(Error::Shape {
                tensor: names.hugging_face,
                expected: shape.to_vec(),
                got: tensor.shape().to_vec(),
            });
        }
        let format = self.plan.format(key.0);
        let mut digest = Digest::default();
        digest.text(tensor.format().name());
        digest.bytes(tensor.bytes());
        self.digests[key.0].store(digest.finish(), Ordering::Relaxed);
        let panels = Panels::pack(&tensor, format, self.plan.activations());
        self.source.release(tensor.name());
        Ok((panels, key, tensor.columns()))
    }

    fn norm(&self, names: &FullNames) -> Result<Norm, Error> {
        let mut norm = self.plain_norm(names)?;
        if self.config.features.norms_add_one {
            norm.weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(norm)
    }

    /// Reads a norm that multiplies by its weights as they are, in any model.
    fn plain_norm(&self, names: &FullNames) -> Result<Norm, Error> {
        let (key, weight) = self.vector(&names.weight())?;
        Ok(Norm {
            weight,
            key,
            eps: self.config.rms_eps as f32,
        })
    }

    fn vector(&self, names: &FullNames) -> Result<(TensorKey, Vec<f32>), Error> {
        let (key, shape) = self.declared(names);
        let tensor = self.source.tensor(&names.hugging_face)?;
        let values = tensor.expect_shape(shape)?.to_f32();
        let mut digest = Digest::default();
        digest.bytes(bytemuck::cast_slice(&values));
        self.digests[key.0].store(digest.finish(), Ordering::Relaxed);
        Ok((key, values))
    }

    /// Tells these weights, packed like this, from others: every number of the files and of the configuration that
    /// results depend on is in it.
    fn digest(&self) -> u64 {
        let ModelConfig { rms_eps, .. } = *self.config;
        let mut digest = Digest::default();
        digest.text(self.config.architecture.model_type());
        let frequencies = self.config.rope.frequencies(self.config.head_dim);
        for number in frequencies.iter().chain([&rms_eps]) {
            digest.number(number.to_bits());
        }
        // Models from before there were features have the digests that they had.
        if self.config.features != Features::default() || self.config.rope.attention_factor() != 1.0
        {
            let features = format!("{:?} {:?}", self.config.features, self.config.rope);
            // So have those from before an expert could be shared.
            digest.text(&features.replace(", shared: None", ""));
        }
        for size in [self.config.heads, self.config.kv_heads] {
            digest.number(size as u64);
        }
        for (key, tensor) in self.table.tensors().iter().enumerate() {
            digest.text(&tensor.names.hugging_face);
            for &size in &tensor.shape {
                digest.number(size as u64);
            }
            digest.text(self.plan.format(key).name());
            digest.number(self.digests[key].load(Ordering::Relaxed));
        }
        digest.finish()
    }

    fn declared(&self, names: &FullNames) -> (TensorKey, &[usize]) {
        let key = self.table.tensor_key(&names.hugging_face);
        let key = key.expect("parts declare what they load");
        (key, &self.table.tensors()[key.0].shape)
    }
}

impl LayerReader<'_> {
    /// How keys and values are held.
    pub(crate) fn key_values(&self) -> CacheFormat {
        self.reader.plan.key_values()
    }

    pub(crate) fn norm(&self, names: Names) -> Result<Norm, Error> {
        self.reader.norm(&names.in_layer(self.layer))
    }

    /// Reads a norm that multiplies by its weights as they are, in any model.
    pub(crate) fn plain_norm(&self, names: Names) -> Result<Norm, Error> {
        self.reader.plain_norm(&names.in_layer(self.layer))
    }

    /// Reads the weights of a convolution.
    pub(crate) fn kernel(&self, names: Names) -> Result<Bias, Error> {
        let (key, values) = self.reader.vector(&names.in_layer(self.layer).weight())?;
        Ok(Bias { values, key })
    }

    /// Reads a vector that was declared without an ending.
    pub(crate) fn vector(&self, names: Names) -> Result<Bias, Error> {
        let (key, values) = self.reader.vector(&names.in_layer(self.layer))?;
        Ok(Bias { values, key })
    }

    /// Reads a matrix that has no adapter.
    pub(crate) fn matrix(&self, names: Names) -> Result<(Panels, TensorKey), Error> {
        self.reader.matrix(&names.in_layer(self.layer))
    }

    /// Reads the bias of a matrix that has no adapter.
    pub(crate) fn bias(&self, names: Names) -> Result<Bias, Error> {
        let (key, values) = self.reader.vector(&names.in_layer(self.layer).bias())?;
        Ok(Bias { values, key })
    }

    /// Reads a linear layer of an expert.
    pub(crate) fn expert(&self, names: Names, expert: usize) -> Result<Linear, Error> {
        self.linear_named(&names.in_expert(self.layer, expert))
    }

    /// Reads a linear layer, with its bias if one was declared.
    pub(crate) fn linear(&self, names: Names) -> Result<Linear, Error> {
        self.linear_named(&names.in_layer(self.layer))
    }

    fn linear_named(&self, names: &FullNames) -> Result<Linear, Error> {
        let reader = self.reader;
        let (weight, weight_key, columns) = reader.ordered_matrix(names)?;
        let bias_names = names.bias();
        let bias = match reader.table.tensor_key(&bias_names.hugging_face) {
            None => None,
            Some(_) => {
                let (key, values) = reader.vector(&bias_names)?;
                Some(Bias { values, key })
            }
        };
        Ok(Linear {
            site: reader
                .table
                .site_key(&names.hugging_face)
                .expect("parts declare what they load"),
            weight,
            weight_key,
            bias,
            columns,
        })
    }
}
