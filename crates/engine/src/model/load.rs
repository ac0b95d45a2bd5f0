//! Packing a model's weights, once, at load.

use std::sync::Arc;

use rayon::prelude::*;

use super::Model;
use super::layer::Layer;
use super::linear::{Bias, Linear};
use super::norm::Norm;
use super::tensor_table::{EMBEDDING, FINAL_NORM, FullNames, HEAD, Names, TensorKey, TensorTable};
use super::workspace::Pool;
use crate::kernels::panels::Panels;
use crate::kernels::rope;
use crate::weights::{Dtype, TensorView, WeightSource};
use crate::{Error, ModelConfig, Threads};

/// How the packed weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// As the source stores them. This is the default.
    #[default]
    Stored,
    /// In single precision, whatever the source holds.
    F32,
}

impl Model {
    /// Reads and packs all weights.
    ///
    /// # Errors
    ///
    /// When a tensor is missing, has the wrong shape (the error names both), or cannot be read.
    pub fn load(
        source: &dyn WeightSource,
        precision: Precision,
        threads: &Threads,
    ) -> Result<Self, Error> {
        source.config().validate()?;
        let dtype = match precision {
            Precision::Stored => source.precision(),
            Precision::F32 => Dtype::F32,
        };
        let table = Arc::new(TensorTable::new(source.config()));
        threads.run(|| {
            let reader = Reader {
                source,
                config: source.config(),
                dtype,
                table: &table,
            };
            reader.model(&table, threads)
        })
    }
}

struct Reader<'a> {
    source: &'a dyn WeightSource,
    config: &'a ModelConfig,
    dtype: Dtype,
    table: &'a TensorTable,
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
        let head = if config.tied_head {
            None
        } else {
            Some(self.matrix(&HEAD.in_model())?.0)
        };
        Ok(Model {
            config: config.clone(),
            threads: threads.clone(),
            table: Arc::clone(table),
            embedding: self.matrix(&EMBEDDING.in_model())?.0,
            layers,
            final_norm: self.norm(&FINAL_NORM.in_model())?,
            head,
            rope: rope::Table::new(&config.rope, config.head_dim),
            workspaces: Pool::default(),
        })
    }

    fn matrix(&self, names: &FullNames) -> Result<(Panels, TensorKey), Error> {
        let (key, tensor) = self.tensor(&names.weight())?;
        Ok((Panels::from_tensor(&tensor, self.dtype), key))
    }

    fn norm(&self, names: &FullNames) -> Result<Norm, Error> {
        let (key, tensor) = self.tensor(&names.weight())?;
        Ok(Norm {
            weight: tensor.to_f32(),
            key,
            eps: self.config.rms_eps as f32,
        })
    }

    fn tensor(&self, names: &FullNames) -> Result<(TensorKey, TensorView<'_>), Error> {
        let name = &names.hugging_face;
        let key = self
            .table
            .tensor_key(name)
            .expect("parts declare what they load");
        let shape = &self.table.tensors()[key.0].shape;
        Ok((key, self.source.tensor(name)?.expect_shape(shape)?))
    }
}

impl LayerReader<'_> {
    pub(crate) fn norm(&self, names: Names) -> Result<Norm, Error> {
        self.reader.norm(&names.in_layer(self.layer))
    }

    /// Reads a linear layer, with its bias if one was declared.
    pub(crate) fn linear(&self, names: Names) -> Result<Linear, Error> {
        let (reader, names) = (self.reader, names.in_layer(self.layer));
        let (weight, weight_key) = reader.matrix(&names)?;
        let bias_names = names.bias();
        let bias = match reader.table.tensor_key(&bias_names.hugging_face) {
            None => None,
            Some(_) => {
                let (key, tensor) = reader.tensor(&bias_names)?;
                let values = tensor.to_f32();
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
        })
    }
}
