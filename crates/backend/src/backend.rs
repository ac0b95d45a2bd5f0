//! A base model and what computes with it.

use std::fmt;
use std::path::Path;

use tinkrs_types::LoraConfig;
use tinkrs_types::training::OptimizerConfig;

use crate::{Adapter, Error, Sampler, SamplerOptions, StatePart, TrainingRun};

/// A base model and what computes with it.
///
/// Runs and samplers that it makes belong to it and to no other. It may be called from several threads.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Describes the model and what can be relied on.
    fn describe(&self) -> Description;

    /// Returns how many bytes something takes, before it is asked for. An upper bound where the exact
    /// number depends on the data.
    fn memory(&self, need: &Need) -> u64;

    /// Gives back memory that is kept from one pass to the next to make the next one faster.
    fn trim(&self) {}

    /// Starts an adapter that changes nothing yet. The same config gives the same weights.
    ///
    /// # Errors
    ///
    /// When a config cannot be used.
    fn create(
        &self,
        lora: &LoraConfig,
        optimizer: &OptimizerConfig,
    ) -> Result<Box<dyn TrainingRun>, Error>;

    /// Continues a run whose [state](TrainingRun::state) was written to a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is of another model.
    fn restore(&self, state: &Path, part: StatePart) -> Result<Box<dyn TrainingRun>, Error>;

    /// Reads the rank of an adapter in a PEFT folder without its tensors, whose size it decides.
    ///
    /// # Errors
    ///
    /// When the settings of the folder are missing, malformed or not supported.
    fn adapter_rank(&self, folder: &Path) -> Result<usize, Error>;

    /// Starts a run with an adapter from a PEFT folder that anyone may have made, and a new
    /// optimizer, the default one.
    /// An adapter without any layer gives a run that [trains](TrainingRun::lora) no part.
    ///
    /// # Errors
    ///
    /// When a file is missing or malformed, a setting is not supported, or a tensor does not fit.
    fn import_adapter(&self, folder: &Path) -> Result<Box<dyn TrainingRun>, Error>;

    /// Loads an adapter from a PEFT folder, for sampling.
    ///
    /// # Errors
    ///
    /// As [`import_adapter`](Self::import_adapter).
    fn load_adapter(&self, folder: &Path) -> Result<Adapter, Error>;

    /// Makes a sampler without requests and adapters.
    fn sampler(&self, options: SamplerOptions) -> Box<dyn Sampler>;
}

/// What a backend says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The family of the model, as Hugging Face spells it in `model_type`: `llama`, `qwen3`. Clients see
    /// it.
    pub architecture: String,
    /// The name of the family to be shown to people: `Llama`, `Qwen3`.
    pub family: String,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// How many tokens there are.
    pub vocabulary: usize,
    /// The tokens that end a sequence.
    pub end_of_sequence: Vec<u32>,
    /// How many weights the base model has.
    pub parameters: u64,
    /// How most of the base model's weights are held: `f32`, `bf16`, `q4_k`.
    pub weight_format: String,
    /// In which numbers quantised weights read their inputs, in training and sampling alike: `f32`, `int8`.
    pub activations: String,
    /// How keys and values are held, and what they are rounded to in training and sampling alike: `f32`, `bf16`, `q8_0`.
    pub key_values: String,
    /// Tells the base model's weights, as they are held, from others of the same name; empty if nothing is loaded.
    pub weights_digest: String,
    /// The names of the optimizers that it has.
    pub optimizers: Vec<String>,
    /// Whether repeating operations gives the same bits. If so, a lost run is recovered by repeating its
    /// operations since the last snapshot; if not, a snapshot has to follow each operation.
    pub repeats_exactly: bool,
}

impl Description {
    /// Names the numeric path: `q8_0/int8@0123456789abcdef`, which is how the weights are held, how their inputs are
    /// read, and which weights they are; or `q8_0/int8/bf16@0123456789abcdef` where keys and values are not in f32. Two
    /// backends with the same one compute the same bits.
    ///
    /// ```
    /// # use tinkrs_backend::Description;
    /// # let description = Description {
    /// #     architecture: String::new(), family: String::new(), context: 1, vocabulary: 1,
    /// #     end_of_sequence: Vec::new(), parameters: 1, optimizers: Vec::new(), repeats_exactly: true,
    /// #     weight_format: "q8_0".to_owned(), activations: "int8".to_owned(), weights_digest: "0af1".to_owned(),
    /// #     key_values: "f32".to_owned(),
    /// # };
    /// assert_eq!(description.numerics(), "q8_0/int8@0af1");
    /// let narrow = Description { key_values: "bf16".to_owned(), ..description };
    /// assert_eq!(narrow.numerics(), "q8_0/int8/bf16@0af1");
    /// ```
    #[must_use]
    pub fn numerics(&self) -> String {
        let Self {
            weight_format,
            activations,
            key_values,
            weights_digest,
            ..
        } = self;
        // As runs of earlier versions have it in their records.
        let key_values = match key_values.as_str() {
            "f32" => String::new(),
            other => format!("/{other}"),
        };
        format!("{weight_format}/{activations}{key_values}@{weights_digest}")
    }
}

/// Something that takes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The base model itself, from the start to the end.
    Weights,
    /// A training run: its adapter, gradients and optimizer, from its creation to its end.
    Run {
        /// The adapter.
        lora: LoraConfig,
    },
    /// What an operation of a run other than a pass copies while it is under way, besides the run: a step, a
    /// save, or taking the run up from its state.
    Copies {
        /// The adapter of the run.
        lora: LoraConfig,
    },
    /// The [state](TrainingRun::state) of a run, while it is held.
    State {
        /// The adapter of the run.
        lora: LoraConfig,
    },
    /// A pass of a run that computes gradients, besides the run and its slices, while it is under way.
    Pass {
        /// The adapter of the run.
        lora: LoraConfig,
    },
    /// A slice of a pass, while it is computed. A backend may keep this memory for the next slice, of
    /// whichever pass, until it is [trimmed](Backend::trim).
    Slice {
        /// The adapter of the run.
        lora: LoraConfig,
        /// Tokens that are computed at once, a single longer datum aside.
        tokens: usize,
        /// Tokens of the longest datum.
        longest: usize,
        /// Whether gradients are computed.
        backward: bool,
    },
    /// An adapter that a sampler holds.
    Adapter {
        /// The adapter.
        lora: LoraConfig,
    },
    /// A sequence that is sampled: its prompt and all tokens that may follow.
    Sequence {
        /// Tokens of the sequence.
        tokens: usize,
    },
}
