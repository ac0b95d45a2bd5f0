//! The engine behind the traits of `tinkrs-backend`, which is how a server uses it.
//!
//! ```
//! use tinkrs_backend::{Backend, Objective, PassProgress, PassRequest};
//! use tinkrs_engine::types::training::OptimizerConfig;
//! use tinkrs_engine::types::{Datum, LoraConfig, LossFn};
//! use tinkrs_engine::weights::{Dtype, RandomWeights};
//! use tinkrs_engine::{CpuBackend, Model, ModelConfig, Precision, Threads};
//!
//! let weights = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::F32)?;
//! let model = Model::load(&weights, Precision::Stored, &Threads::new(1)?)?;
//! let backend = CpuBackend::new(model);
//! assert!(backend.describe().repeats_exactly);
//!
//! let mut run = backend.create(&LoraConfig::new(8), &OptimizerConfig::AdamW)?;
//! let datum = Datum::from_prompt_completion(&[1, 5], &[9, 2])?;
//! let mut pass = run.begin(PassRequest {
//!     data: vec![datum.clone(), datum],
//!     objective: Objective::BuiltIn(LossFn::CrossEntropy),
//!     backward: true,
//! })?;
//! assert_eq!(pass.advance(1)?, PassProgress::Continue);
//! assert!(matches!(pass.advance(1)?, PassProgress::Done(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod memory;
mod run;
mod sampler;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;

use tinkrs_backend::{
    self as backend, Backend, Description, ErrorKind, Need, SamplerOptions, StatePart,
};
use tinkrs_types::LoraConfig;
use tinkrs_types::training::OptimizerConfig;

use crate::model::numerics::Plan;
use crate::model::tensor_table::TensorTable;
use crate::optim::Optimizer;
use crate::weights::WeightSource;
use crate::{Adapter, Error, Model, ModelConfig, Numerics, TrainState, TrainingRun, peft};
use run::Run;

/// A model on the CPU, as a backend.
#[derive(Clone, Debug)]
pub struct CpuBackend {
    model: Arc<Model>,
}

impl CpuBackend {
    /// Computes with a model.
    pub fn new(model: impl Into<Arc<Model>>) -> Self {
        Self {
            model: model.into(),
        }
    }

    /// Returns how many bytes weights take once they are loaded, without loading them.
    ///
    /// # Errors
    ///
    /// When a tensor is missing or its format is not supported.
    pub fn weight_bytes(source: &dyn WeightSource, numerics: Numerics) -> Result<u64, Error> {
        let table = TensorTable::new(source.config());
        let plan = Plan::new(source, &table, numerics)?;
        Ok(memory::weight_bytes(source.config(), &table, &plan))
    }

    /// Describes the backend that weights would be loaded into, without loading them.
    ///
    /// # Errors
    ///
    /// As for [`weight_bytes`](Self::weight_bytes).
    pub fn describe_source(
        source: &dyn WeightSource,
        numerics: Numerics,
    ) -> Result<Description, Error> {
        let table = TensorTable::new(source.config());
        let plan = Plan::new(source, &table, numerics)?;
        Ok(describe(source.config(), &table, &plan, String::new()))
    }
}

fn describe(
    config: &ModelConfig,
    table: &TensorTable,
    plan: &Plan,
    weights_digest: String,
) -> Description {
    let tensors = table.tensors().iter();
    let sizes = tensors.map(|tensor| tensor.shape.iter().product::<usize>());
    let activations = if plan.uses_int8() { "int8" } else { "f32" };
    Description {
        architecture: config.architecture.model_type().to_owned(),
        family: config.architecture.name().to_owned(),
        context: config.max_context,
        vocabulary: config.vocab,
        end_of_sequence: config.eos.clone(),
        parameters: sizes.map(|size| size as u64).sum(),
        weight_format: plan.main_format(table).name().to_owned(),
        activations: activations.to_owned(),
        key_values: plan.key_values().name().to_owned(),
        weights_digest,
        optimizers: Optimizer::all().map(|known| known.name().to_owned()).into(),
        repeats_exactly: true,
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> Description {
        let model = &self.model;
        let digest = format!("{:016x}", model.digest);
        describe(&model.config, &model.table, &model.plan, digest)
    }

    fn memory(&self, need: &Need) -> u64 {
        memory::bytes(&self.model, need)
    }

    fn trim(&self) {
        self.model.workspaces.clear();
        memory::give_back();
    }

    fn create(
        &self,
        lora: &LoraConfig,
        optimizer: &OptimizerConfig,
    ) -> Result<Box<dyn backend::TrainingRun>, backend::Error> {
        let optimizer = Optimizer::new(optimizer)?;
        let run = TrainingRun::lora(Arc::clone(&self.model), lora)?;
        Ok(Run::boxed(run.with_optimizer(optimizer)))
    }

    fn restore(
        &self,
        state: &Path,
        part: StatePart,
    ) -> Result<Box<dyn backend::TrainingRun>, backend::Error> {
        let state = TrainState::read(state)?;
        let mut run = TrainingRun::from_state(Arc::clone(&self.model), &state)?;
        if let StatePart::Weights(optimizer) = part {
            run.restore_weights(&state)?;
            run = run.with_optimizer(Optimizer::new(&optimizer)?);
        }
        Ok(Run::boxed(run))
    }

    fn adapter_rank(&self, folder: &Path) -> Result<usize, backend::Error> {
        Ok(peft::rank(folder)?)
    }

    fn import_adapter(
        &self,
        folder: &Path,
    ) -> Result<Box<dyn backend::TrainingRun>, backend::Error> {
        let adapter = peft::load(folder, &self.model.config)?;
        Ok(Run::boxed(TrainingRun::from_peft(
            Arc::clone(&self.model),
            &adapter,
        )?))
    }

    fn load_adapter(&self, folder: &Path) -> Result<backend::Adapter, backend::Error> {
        let adapter = peft::load(folder, &self.model.config)?;
        let adapter = Adapter::from_peft(&self.model, &adapter)?;
        Ok(backend::Adapter::new(Arc::new(adapter)))
    }

    fn sampler(&self, options: SamplerOptions) -> Box<dyn backend::Sampler> {
        Box::new(sampler::EngineSampler::new(&self.model, options))
    }
}

impl From<Error> for backend::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NonFiniteTensor { .. } => ErrorKind::Divergence,
            Error::Io { source, .. } if !is_bad_data(source) => ErrorKind::Storage,
            error if error.is_bad_request() => ErrorKind::BadRequest,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Whether the contents of a file are wrong, rather than the disk: not UTF-8, or nothing at all.
fn is_bad_data(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
    )
}
