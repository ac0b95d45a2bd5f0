//! A backend without weights, for tests of servers: a few lines of exact arithmetic.
//!
//! The model has one trainable number for each token, `w`, and likes to count. After token `p`, the
//! logit of token `t` is
//!
//! ```text
//! z_t = w_t + 2 [t = p + 1]
//! ```
//!
//! A new adapter has `w = 0`. Step `k` moves each number that has a gradient by the learning rate over
//! `k`, against the gradient's sign, so the loss of whatever is trained falls. With the optimizer `sgd`,
//! which the API does not know, it moves by the whole learning rate. Rank, seed and the parts of a model
//! that are trained are kept and change nothing.
//!
//! A backend that does [not repeat exactly](FakeBackend::inexact) adds another small number to the
//! weights at each step of the process.

mod run;
mod sampler;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tinkrs_backend::{
    Adapter, Backend, Description, Error, ErrorKind, Need, Sampler, SamplerOptions, StatePart,
    TrainingRun,
};
use tinkrs_types::LoraConfig;
use tinkrs_types::training::OptimizerConfig;

use run::FakeRun;

/// How many tokens the model knows.
pub const VOCABULARY: usize = 96;
/// The longest sequence.
pub const CONTEXT: usize = 128;
/// The token that ends a text.
pub const END_OF_TEXT: u32 = 2;

/// A backend without weights.
#[derive(Clone)]
pub struct FakeBackend {
    repeats_exactly: bool,
    before_slice: Arc<dyn Fn() + Send + Sync>,
    rank_bytes: u64,
    token_bytes: u64,
    deadly_token: Option<u32>,
    activations: &'static str,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    passes: AtomicU64,
    steps: AtomicU64,
}

impl FakeBackend {
    /// Makes a backend that repeats to the bit.
    #[must_use]
    pub fn new() -> Self {
        Self {
            repeats_exactly: true,
            before_slice: Arc::new(|| {}),
            rank_bytes: 4,
            token_bytes: 4,
            deadly_token: None,
            activations: "f32",
            counts: Arc::default(),
        }
    }

    /// Makes a backend that gives other bits when an operation is repeated.
    #[must_use]
    pub fn inexact() -> Self {
        Self {
            repeats_exactly: false,
            ..Self::new()
        }
    }

    /// Calls a function before each slice of a pass, on the thread that computes it.
    #[must_use]
    pub fn before_slice(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.before_slice = Arc::new(call);
        self
    }

    /// Says that a run needs this much memory for each rank, and half of that again for a copy or for
    /// sampling; and a pass this much for each token that is computed at once.
    #[must_use]
    pub fn needs_memory(mut self, for_a_rank: u64, for_a_token: u64) -> Self {
        (self.rank_bytes, self.token_bytes) = (for_a_rank, for_a_token);
        self
    }

    /// Aborts the process when a pass or a sample comes to this token, as a kernel without memory would.
    #[must_use]
    pub fn dies_at(mut self, token: u32) -> Self {
        self.deadly_token = Some(token);
        self
    }

    /// Says that it reads its inputs in these numbers, which names another numeric path and changes nothing.
    #[must_use]
    pub fn activations(mut self, format: &'static str) -> Self {
        self.activations = format;
        self
    }

    fn meet(&self, tokens: &[u32]) {
        if self
            .deadly_token
            .is_some_and(|token| tokens.contains(&token))
        {
            std::process::abort();
        }
    }

    /// Returns how many passes have ended well.
    #[must_use]
    pub fn passes(&self) -> u64 {
        self.counts.passes.load(Ordering::SeqCst)
    }

    /// Returns how many steps were taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.counts.steps.load(Ordering::SeqCst)
    }

    fn boxed(&self, state: State) -> Box<dyn TrainingRun> {
        Box::new(FakeRun::new(self.clone(), state))
    }
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend")
            .field("repeats_exactly", &self.repeats_exactly)
            .finish_non_exhaustive()
    }
}

impl Backend for FakeBackend {
    fn describe(&self) -> Description {
        Description {
            architecture: "llama".to_owned(),
            family: "Llama".to_owned(),
            context: CONTEXT,
            vocabulary: VOCABULARY,
            end_of_sequence: vec![END_OF_TEXT],
            parameters: VOCABULARY as u64,
            weight_format: "f32".to_owned(),
            activations: self.activations.to_owned(),
            key_values: "f32".to_owned(),
            weights_digest: "0".to_owned(),
            optimizers: vec!["adamw".to_owned(), "sgd".to_owned()],
            repeats_exactly: self.repeats_exactly,
        }
    }

    fn memory(&self, need: &Need) -> u64 {
        match need {
            Need::Weights => 4 * VOCABULARY as u64,
            Need::Run { lora } | Need::State { lora } => self.rank_bytes * u64::from(lora.rank),
            Need::Copies { lora } | Need::Adapter { lora } => {
                self.rank_bytes * u64::from(lora.rank) / 2
            }
            Need::Pass { .. } => 0,
            Need::Slice { tokens, .. } => self.token_bytes * *tokens as u64,
            Need::Sequence { tokens } => 4 * *tokens as u64,
        }
    }

    fn create(
        &self,
        lora: &LoraConfig,
        optimizer: &OptimizerConfig,
    ) -> Result<Box<dyn TrainingRun>, Error> {
        lora.check()?;
        Ok(self.boxed(State::new(lora, optimizer)))
    }

    fn restore(&self, state: &Path, part: StatePart) -> Result<Box<dyn TrainingRun>, Error> {
        let mut state: State = read(state)?;
        if let StatePart::Weights(optimizer) = part {
            state.gradients = vec![0.0; VOCABULARY];
            state.steps = 0;
            state.optimizer = optimizer;
        }
        Ok(self.boxed(state))
    }

    fn adapter_rank(&self, folder: &Path) -> Result<usize, Error> {
        let settings: AdapterSettings = read(&folder.join(SETTINGS))?;
        Ok(settings.r)
    }

    fn import_adapter(&self, folder: &Path) -> Result<Box<dyn TrainingRun>, Error> {
        let settings: AdapterSettings = read(&folder.join(SETTINGS))?;
        let weights: Vec<f32> = read(&folder.join(WEIGHTS))?;
        if weights.len() != VOCABULARY {
            let found = weights.len();
            return Err(Error::bad_request(format!(
                "{WEIGHTS}: found {found} weights, expected {VOCABULARY}"
            )));
        }
        let rank = u32::try_from(settings.r).unwrap_or(u32::MAX);
        Ok(self.boxed(State {
            weights,
            ..State::new(&LoraConfig::new(rank), &OptimizerConfig::default())
        }))
    }

    fn load_adapter(&self, folder: &Path) -> Result<Adapter, Error> {
        let weights: Vec<f32> = read(&folder.join(WEIGHTS))?;
        Ok(Adapter::new(Arc::new(weights)))
    }

    fn sampler(&self, options: SamplerOptions) -> Box<dyn Sampler> {
        Box::new(sampler::FakeSampler::new(self.clone(), options))
    }
}

const SETTINGS: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

#[derive(Serialize, Deserialize)]
struct AdapterSettings {
    base_model_name_or_path: String,
    r: usize,
}

/// Everything a run needs to continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    lora: LoraConfig,
    optimizer: OptimizerConfig,
    steps: u64,
    weights: Vec<f32>,
    gradients: Vec<f32>,
}

impl State {
    fn new(lora: &LoraConfig, optimizer: &OptimizerConfig) -> Self {
        Self {
            lora: LoraConfig {
                seed: None,
                ..lora.clone()
            },
            optimizer: optimizer.clone(),
            steps: 0,
            weights: vec![0.0; VOCABULARY],
            gradients: vec![0.0; VOCABULARY],
        }
    }
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, Error> {
    let bytes = fs::read(path).map_err(|error| storage("read", path, error))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::new(ErrorKind::Other, format!("{}: {error}", path.display())))
}

/// Writes a file, replacing it whole or not at all.
fn write(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let bytes = serde_json::to_vec(value).expect("numbers and texts");
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes)
        .and_then(|()| fs::rename(&partial, path))
        .map_err(|error| storage("write", path, error))
}

fn storage(verb: &str, path: &Path, error: std::io::Error) -> Error {
    let text = format!("could not {verb} {}: {error}", path.display());
    Error::new(ErrorKind::Storage, text)
}

/// Returns the log-probabilities of all tokens after token `previous`.
#[must_use]
pub fn logprobs(weights: &[f32], previous: u32) -> Vec<f32> {
    let next = (previous as usize + 1) % VOCABULARY;
    let bonus = |token: usize| if token == next { 2.0 } else { 0.0 };
    let logits = weights.iter().enumerate();
    let logits: Vec<f64> = logits
        .map(|(token, weight)| f64::from(*weight) + bonus(token))
        .collect();
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let scale = sum.ln();
    logits.iter().map(|logit| (logit - scale) as f32).collect()
}

#[cfg(test)]
mod tests;
