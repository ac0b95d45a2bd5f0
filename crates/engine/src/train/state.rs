//! Everything a training run needs to go on later as if it had never stopped.
//!
//! A state is a set of named `f32` tensors and the number of steps. Parameters are shared with the run
//! until the run's next step, so taking a state is cheap and writing it does not hold the run up.
//!
//! In a file (safetensors) the names are `values.…`, `gradients.…`, `moments.first.…` and
//! `moments.second.…`; `steps` holds the bytes of a little-endian `u64` in the place of two numbers, and
//! `lora` holds rank and alpha. The optimizer is the name of an empty tensor, `optimizer.` and its config as
//! JSON, unless it is the default one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tinkrs_types::training::OptimizerConfig;

use super::slots::Slots;
use super::{Kind, TrainingRun};
use crate::model::tensor_table::TensorTable;
use crate::optim::Optimizer;
use crate::weights::safetensors::{self, SafetensorsFile};
use crate::weights::{Dtype, TensorView, WeightSource};
use crate::{Error, Model, ModelConfig};

/// A training run at one moment: parameters, accumulated gradients, optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainState {
    /// Rank and alpha of an adapter; `None` in a full run.
    lora: Option<(usize, f32)>,
    values: BTreeMap<String, Arc<Vec<f32>>>,
    gradients: BTreeMap<String, Vec<f32>>,
    optimizer: Optimizer,
}

impl TrainingRun {
    /// Takes the state of the run.
    #[must_use]
    pub fn state(&self) -> TrainState {
        let names = || self.slots.tensors.iter().map(|tensor| tensor.name.clone());
        let gradients = self
            .gradients
            .iter()
            .enumerate()
            .map(|(number, sum)| (self.gradient_key(number), sum.clone()));
        TrainState {
            lora: self.lora_settings(),
            values: names().zip(self.values.iter().cloned()).collect(),
            gradients: gradients.collect(),
            optimizer: self.optimizer.clone(),
        }
    }

    /// Writes the [state](Self::state) of the run to a file, without a copy of it in memory.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn save_state(&self, path: &Path) -> Result<(), Error> {
        let values = self.slots.tensors.iter().zip(&self.values);
        let values = values.map(|(tensor, values)| (tensor.name.clone(), values.as_slice()));
        let gradients = self.gradients.iter().enumerate();
        let gradients = gradients.map(|(number, sum)| (self.gradient_key(number), sum.as_slice()));
        write(
            path,
            self.lora_settings(),
            values,
            gradients,
            &self.optimizer,
        )
    }

    /// Goes on from the state of an adapter: its layers, rank and alpha, parameters, accumulated
    /// gradients and optimizer.
    ///
    /// # Errors
    ///
    /// When the state is of a full run, or does not fit the model.
    pub fn from_state(model: Arc<Model>, state: &TrainState) -> Result<Self, Error> {
        let settings = state
            .lora
            .filter(|(rank, alpha)| *rank > 0 && alpha.is_finite());
        let Some((rank, alpha)) = settings else {
            return Err(Error::invalid("state", "it is not of an adapter"));
        };
        let slots = Slots::lora(&model.table, rank, |site| {
            let [a, _] = site.lora_names();
            state.values.contains_key(&a)
        });
        let values = checked_values(&slots, state)?;
        let mut run = Self::with_adapter(model, slots, values, rank, alpha);
        run.restore_training(state)?;
        Ok(run)
    }

    /// Puts the run back to a state: parameters, accumulated gradients and optimizer.
    ///
    /// # Errors
    ///
    /// When the state belongs to a run with other tensors, rank or alpha. Nothing has changed then.
    pub fn restore(&mut self, state: &TrainState) -> Result<(), Error> {
        self.check_settings(state)?;
        let values = checked_values(&self.slots, state)?;
        self.restore_training(state)?;
        self.values = values;
        self.repack()
    }

    /// Takes gradients and optimizer of a state, or nothing if they do not fit.
    fn restore_training(&mut self, state: &TrainState) -> Result<(), Error> {
        let mut gradients = Vec::new();
        if !state.gradients.is_empty() {
            for (number, zeros) in self.slots.zeros().into_iter().enumerate() {
                let key = self.gradient_key(number);
                let sum = state
                    .gradients
                    .get(&key)
                    .filter(|sum| sum.len() == zeros.len());
                gradients.push(sum.cloned().ok_or_else(|| missing(&key))?);
            }
        }
        for tensor in &self.slots.tensors {
            if !state.optimizer.fits(&tensor.name, tensor.elements()) {
                return Err(missing(&format!("moments of {}", tensor.name)));
            }
        }
        self.gradients = gradients;
        self.optimizer = state.optimizer.clone();
        Ok(())
    }

    /// Takes only the parameters of a state; gradients are forgotten and the optimizer starts anew.
    ///
    /// # Errors
    ///
    /// As for [`restore`](Self::restore).
    pub fn restore_weights(&mut self, state: &TrainState) -> Result<(), Error> {
        self.check_settings(state)?;
        self.values = checked_values(&self.slots, state)?;
        self.gradients.clear();
        self.optimizer = Optimizer::new(&self.optimizer.config())?;
        self.repack()
    }

    fn check_settings(&self, state: &TrainState) -> Result<(), Error> {
        let ours = self.lora_settings();
        if state.lora == ours {
            return Ok(());
        }
        let reason = format!(
            "the state has rank and alpha {:?}, the run {ours:?}",
            state.lora
        );
        Err(Error::invalid("state", reason))
    }

    fn lora_settings(&self) -> Option<(usize, f32)> {
        match self.kind {
            Kind::Lora { rank, alpha, .. } => Some((rank, alpha)),
            Kind::Full => None,
        }
    }

    fn gradient_key(&self, number: usize) -> String {
        self.slots.gradient_name(number)
    }
}

/// Returns the parameters of a state, one for each tensor that is trained.
fn checked_values(slots: &Slots, state: &TrainState) -> Result<Vec<Arc<Vec<f32>>>, Error> {
    if state.values.len() != slots.tensors.len() {
        let (got, wanted) = (state.values.len(), slots.tensors.len());
        return Err(Error::invalid(
            "state",
            format!("it has {got} tensors, the run {wanted}"),
        ));
    }
    let value = |tensor: &super::slots::Tensor| {
        let values = state
            .values
            .get(&tensor.name)
            .ok_or_else(|| missing(&tensor.name))?;
        if values.len() != tensor.elements() {
            let (expected, got) = (tensor.shape.clone(), vec![values.len()]);
            return Err(Error::Shape {
                tensor: tensor.name.clone(),
                expected,
                got,
            });
        }
        Ok(Arc::clone(values))
    };
    slots.tensors.iter().map(value).collect()
}

fn missing(tensor: &str) -> Error {
    Error::MissingTensor {
        tensor: tensor.to_owned(),
        origin: "the training state".to_owned(),
    }
}

/// What the name of the tensor begins with that says which optimizer it is.
const OPTIMIZER: &str = "optimizer.";

/// Writes the parts of a state to a file. They are lent, so this takes no memory to speak of.
fn write<'a>(
    path: &Path,
    lora: Option<(usize, f32)>,
    values: impl Iterator<Item = (String, &'a [f32])>,
    gradients: impl Iterator<Item = (String, &'a [f32])>,
    optimizer: &Optimizer,
) -> Result<(), Error> {
    let settings = lora.map(|(rank, alpha)| [rank as f32, alpha]);
    let mut tensors = Vec::new();
    let mut push = |name: String, values| {
        let tensor = TensorView::borrow_f32(name, vec![<[f32]>::len(values)], values)?;
        tensors.push(tensor);
        Ok::<_, Error>(())
    };
    for (name, values) in values {
        push(format!("values.{name}"), values)?;
    }
    for (name, sum) in gradients {
        push(format!("gradients.{name}"), sum)?;
    }
    for (name, values) in optimizer.tensors() {
        push(name, values)?;
    }
    let config = optimizer.config();
    if config != OptimizerConfig::default() {
        let config = serde_json::to_string(&config).expect("names and numbers");
        push(format!("{OPTIMIZER}{config}"), &[])?;
    }
    if let Some(settings) = &settings {
        push("lora".to_owned(), settings)?;
    }
    let steps = optimizer.steps().to_le_bytes().to_vec();
    tensors.push(TensorView::new("steps", Dtype::F32, vec![2], steps)?);
    safetensors::save(path, &tensors)
}

impl TrainState {
    /// Returns the number of optimizer steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.optimizer.steps()
    }

    /// Writes the state to a file, replacing it whole or not at all.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let values = self.values.iter();
        let values = values.map(|(name, values)| (name.clone(), values.as_slice()));
        let gradients = self.gradients.iter();
        let gradients = gradients.map(|(name, sum)| (name.clone(), sum.as_slice()));
        write(path, self.lora, values, gradients, &self.optimizer)
    }

    /// Reads a state that [`write`](Self::write) wrote.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or holds something else.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = SafetensorsFile::open(path)?;
        let malformed = |reason: String| Error::malformed(path.display().to_string(), reason);
        let steps = file.tensor("steps")?;
        let steps = <[u8; 8]>::try_from(steps.bytes())
            .map_err(|_| malformed("`steps` is not 8 bytes".to_owned()))?;
        let names = file.names();
        let config = names.iter().find_map(|name| name.strip_prefix(OPTIMIZER));
        let config = config.map_or(Ok(OptimizerConfig::default()), serde_json::from_str);
        let config = config.map_err(|error| malformed(format!("its optimizer: {error}")))?;
        let mut state = Self {
            lora: None,
            values: BTreeMap::new(),
            gradients: BTreeMap::new(),
            optimizer: Optimizer::new(&config)?,
        };
        state.optimizer.set_steps(u64::from_le_bytes(steps));
        for name in names {
            let read = || file.tensor(&name).map(|tensor| tensor.to_f32());
            if let Some(name) = name.strip_prefix("values.") {
                state.values.insert(name.to_owned(), Arc::new(read()?));
            } else if let Some(name) = name.strip_prefix("gradients.") {
                state.gradients.insert(name.to_owned(), read()?);
            } else if let Some(tensor) = state.optimizer.tensor_mut(&name) {
                *tensor = read()?;
            } else if name == "lora" {
                let [rank, alpha] = read()?[..] else {
                    return Err(malformed("`lora` is not rank and alpha".to_owned()));
                };
                state.lora = Some((rank as usize, alpha));
            } else if name != "steps" && !name.starts_with(OPTIMIZER) {
                return Err(malformed(format!("unknown tensor `{name}`")));
            }
        }
        Ok(state)
    }
}

/// All weights of a full run, as a source that a model can be loaded from or saved with.
#[derive(Clone, Debug)]
pub struct FullWeights {
    pub(super) config: ModelConfig,
    pub(super) table: Arc<TensorTable>,
    pub(super) tensors: BTreeMap<String, Arc<Vec<f32>>>,
}

impl WeightSource for FullWeights {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let found = self.table.tensor(name).zip(self.tensors.get(name));
        let (tensor, values) = found.ok_or_else(|| missing(name))?;
        TensorView::from_f32(name, Dtype::F32, tensor.shape.clone(), values)
    }

    fn precision(&self) -> Dtype {
        Dtype::F32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_an_optimizer_that_is_not_there_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        let steps = TensorView::new("steps", Dtype::F32, vec![2], vec![0; 8]).unwrap();
        let save = |optimizer: &str| {
            let name = format!("{OPTIMIZER}{optimizer}");
            let optimizer = TensorView::new(name, Dtype::F32, vec![0], Vec::new()).unwrap();
            safetensors::save(&path, &[steps.clone(), optimizer]).unwrap();
            TrainState::read(&path)
        };
        assert_eq!(save(r#"{"type":"adamw"}"#).unwrap().steps(), 0);
        let error = save(r#"{"type":"sgd"}"#).unwrap_err().to_string();
        assert!(error.contains("sgd"), "{error}");
        let error = save("sgd").unwrap_err().to_string();
        assert!(error.contains("state.safetensors"), "{error}");
    }
}
