//! Models on this machine. This is the only module that knows which engine computes with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tinkrs_backend::Description;
use tinkrs_chat::{Renderer, Tokenizer, format::ChatTemplate};
use tinkrs_engine::weights::{GgufFile, HuggingFaceFolder, WeightSource};
use tinkrs_engine::{Activations, CacheFormat, CpuBackend, Model, Numerics, Precision, Threads};
use tinkrs_server::BaseModel;

use crate::model_store::ModelStore;
use crate::output::Hint;

/// A folder or file with a model, and the name that clients use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NamedModel {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// What was said of its numbers.
    pub(crate) numerics: NumericsArgs,
}

/// In which numbers models of this machine are held and compute
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
pub(crate) struct NumericsArgs {
    /// Hold a model's weights on this machine as they are stored, or in fewer bits: q8_0 (a quarter of f32, nearly its
    /// results) or q4_k (four and six bits). GGUF weights that are quantised stay as they are. Default: as it was in
    /// the data folder before, else stored
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = "Numbers")]
    quantize: Option<Quantize>,

    /// How quantised weights read their inputs, in training and sampling alike: int8 (as llama.cpp does) or f32 (slower;
    /// results are exactly those of the dequantised weights). Default: as it was in the data folder before, else int8
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = "Numbers")]
    activations: Option<ActivationFormat>,

    /// How keys and values of earlier tokens are held: f32, bf16 (half the memory) or q8_0 (about a quarter). They are
    /// rounded to it in training and sampling alike. Default: as it was in the data folder before, else f32
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = "Numbers")]
    kv_cache: Option<KvCacheFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::ValueEnum)]
enum Quantize {
    #[serde(rename = "stored")]
    Stored,
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q8_0,
    #[serde(rename = "q4_k")]
    #[value(name = "q4_k")]
    Q4K,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum ActivationFormat {
    F32,
    Int8,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::ValueEnum)]
enum KvCacheFormat {
    #[serde(rename = "f32")]
    F32,
    #[serde(rename = "bf16")]
    Bf16,
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q8_0,
}

impl NumericsArgs {
    fn numerics(self) -> Numerics {
        let weights = match self.quantize {
            None | Some(Quantize::Stored) => Precision::Stored,
            Some(Quantize::Q8_0) => Precision::Q8_0,
            Some(Quantize::Q4K) => Precision::Q4K,
        };
        Numerics {
            weights,
            activations: match self.activations {
                Some(ActivationFormat::F32) => Activations::F32,
                // docs/quantised.md has the figures that decided on this.
                None | Some(ActivationFormat::Int8) => Activations::Int8,
            },
            key_values: match self.kv_cache {
                None | Some(KvCacheFormat::F32) => CacheFormat::F32,
                Some(KvCacheFormat::Bf16) => CacheFormat::Bf16,
                Some(KvCacheFormat::Q8_0) => CacheFormat::Q8_0,
            },
        }
    }

    /// Whether nothing was said.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns what was said here, and of the rest what was said before.
    pub(crate) fn or(self, before: Self) -> Self {
        Self {
            quantize: self.quantize.or(before.quantize),
            activations: self.activations.or(before.activations),
            kv_cache: self.kv_cache.or(before.kv_cache),
        }
    }

    /// Returns the options that say this.
    pub(crate) fn typed(&self) -> String {
        let mut typed = String::new();
        let mut add = |name: &str, value: Option<clap::builder::PossibleValue>| {
            if let Some(value) = value {
                typed.push_str(&format!(" {name} {}", value.get_name()));
            }
        };
        add(
            "--quantize",
            self.quantize.and_then(|value| value.to_possible_value()),
        );
        add(
            "--activations",
            self.activations.and_then(|value| value.to_possible_value()),
        );
        add(
            "--kv-cache",
            self.kv_cache.and_then(|value| value.to_possible_value()),
        );
        typed
    }
}

impl NamedModel {
    pub(crate) fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            numerics: NumericsArgs::default(),
        }
    }

    /// Returns the same model in numbers that were typed.
    pub(crate) fn held_as(self, numerics: NumericsArgs) -> Self {
        Self { numerics, ..self }
    }
}

/// Reads `NAME=PATH`.
pub(crate) fn read(text: &str) -> Result<NamedModel, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok(NamedModel::new(name, path))
        }
        _ => Err("expected NAME=PATH, such as `my-org/my-model=./folder`".to_owned()),
    }
}

/// A model that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// The one that comes with this program.
    BuiltIn,
    /// One on this machine.
    At(NamedModel),
}

impl Wanted {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::BuiltIn => tinkrs_nano::NAME,
            Self::At(model) => &model.name,
        }
    }

    /// Returns where the model is; the built-in one is put into a data folder.
    pub(crate) fn place(self, data: &Path) -> anyhow::Result<NamedModel> {
        match self {
            Self::BuiltIn => nano(data),
            Self::At(model) => Ok(model),
        }
    }
}

/// Finds a model of this machine: `NAME=PATH`, the built-in one, or one that was added.
pub(crate) fn find(text: &str) -> anyhow::Result<Option<Wanted>> {
    if let Ok(model) = read(text) {
        return Ok(Some(Wanted::At(model)));
    }
    if text == tinkrs_nano::NAME {
        return Ok(Some(Wanted::BuiltIn));
    }
    Ok(ModelStore::open()?.find(text).map(Wanted::At))
}

/// Reads the name of a model that must be on this machine.
pub(crate) fn read_wanted(text: &str) -> Result<Wanted, String> {
    match find(text) {
        Ok(Some(wanted)) => Ok(wanted),
        Ok(None) => Err(format!(
            "`tinkrs models list` has no `{text}`; expected one of its names, or NAME=PATH, such as \
             `my-org/my-model=./folder`"
        )),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// Whether a path is that of a GGUF file.
pub(crate) fn is_gguf(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Returns the folder with a model's tokenizer: its own, or the one that a GGUF file lies in.
fn tokenizer_folder(path: &Path) -> Option<PathBuf> {
    let folder = if is_gguf(path) { path.parent()? } else { path };
    let files = ["tokenizer.json", "tiktoken.model"];
    let has_one = files.iter().any(|file| folder.join(file).exists());
    has_one.then(|| folder.to_owned())
}

/// Returns where a model's tokenizer is: in a folder, or else in the GGUF file itself.
pub(crate) fn tokenizer_source(path: &Path) -> Option<PathBuf> {
    tokenizer_folder(path).or_else(|| is_gguf(path).then(|| path.to_owned()))
}

/// Loads a model's tokenizer. A GGUF file may have none, or one of a kind that is not supported: such a
/// model can be trained and sampled with tokens only.
fn load_tokenizer(path: &Path) -> anyhow::Result<Option<Arc<Tokenizer>>> {
    let Some(source) = tokenizer_source(path) else {
        return Ok(None);
    };
    match Tokenizer::from_path(&source) {
        Err(tinkrs_chat::Error::Unsupported { .. }) if is_gguf(&source) => Ok(None),
        tokenizer => Ok(Some(Arc::new(tokenizer?))),
    }
}

/// Returns the model that comes with this program, whose files are put into a data folder.
pub(crate) fn nano(data: &Path) -> anyhow::Result<NamedModel> {
    let path = data.join("models").join("tinkrs-nano");
    tinkrs_nano::write_to(&path)
        .with_context(|| format!("could not write the built-in model to {}", path.display()))?;
    Ok(NamedModel::new(tinkrs_nano::NAME, path))
}

/// The threads that compute, shared by the models that are given them.
pub(crate) struct ComputeThreads(Threads);

/// Starts the threads that compute; one for each core unless given.
pub(crate) fn threads(count: Option<usize>) -> anyhow::Result<ComputeThreads> {
    let threads = match count {
        Some(count) => Threads::new(count),
        None => Threads::all_cores(),
    };
    let threads = threads.context("could not start the threads that compute")?;
    Ok(ComputeThreads(threads))
}

fn open(path: &Path) -> Result<Box<dyn WeightSource>, tinkrs_engine::Error> {
    Ok(if is_gguf(path) {
        Box::new(GgufFile::open(path)?)
    } else {
        Box::new(HuggingFaceFolder::open(path)?)
    })
}

/// Describes a model from its configuration and the headers of its weights, without loading it.
pub(crate) fn describe(path: &Path) -> anyhow::Result<Description> {
    Ok(CpuBackend::describe_source(
        &*open(path)?,
        Numerics::default(),
    )?)
}

/// Returns how many bytes a model's weights take once they are loaded; none if its files cannot be read,
/// which loading them reports.
pub(crate) fn weight_bytes(named: &NamedModel) -> u64 {
    let weights = open(&named.path);
    let bytes =
        weights.and_then(|weights| CpuBackend::weight_bytes(&*weights, named.numerics.numerics()));
    bytes.unwrap_or(0)
}

/// Loads a model.
pub(crate) fn load(named: &NamedModel, threads: &ComputeThreads) -> anyhow::Result<BaseModel> {
    let NamedModel { name, path, .. } = named;
    let numerics = named.numerics.numerics();
    let model = open(path).and_then(|weights| Model::load(&*weights, numerics, &threads.0));
    let backend = model
        .map(CpuBackend::new)
        .with_context(|| format!("could not load model `{name}` from {}", path.display()))
        .context(Hint(
            "a model is a Hugging Face folder with config.json and safetensors, or a GGUF file",
        ))?;
    let tokenizer = load_tokenizer(path)?;
    Ok(BaseModel {
        tokenizer_id: tokenizer_folder(path).as_deref().and_then(tokenizer_id),
        renderer: tokenizer
            .as_ref()
            .and_then(|tokenizer| renderer(named, tokenizer)),
        tokenizer,
        ..BaseModel::new(name, backend)
    })
}

/// Finds how a model's conversations are written: by its own template, or as its family does. A model may have neither,
/// and is then asked for completions only.
fn renderer(named: &NamedModel, tokenizer: &Arc<Tokenizer>) -> Option<Renderer> {
    let NamedModel { name, path, .. } = named;
    let source = tokenizer_source(path);
    let template = ChatTemplate::from_path(source.as_ref().unwrap_or(path));
    let of_template = template.and_then(|template| Renderer::new(Arc::clone(tokenizer), template));
    let of_family = || Renderer::of_model(name, Arc::clone(tokenizer));
    of_template.or_else(|_| of_family()).ok()
}

/// Returns the folder if clients can load a tokenizer from it. Python's needs to be told which kind it is: by
/// its own settings or, in folders without them, by those of the model.
fn tokenizer_id(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let settings = ["tokenizer_config.json", "config.json"];
    let has_one = settings.iter().any(|name| folder.join(name).exists());
    has_one.then(|| folder.to_str().map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_name_and_a_path() {
        let model = read("org/tiny=/models/a=b").unwrap();
        assert_eq!(model.name, "org/tiny");
        assert_eq!(model.path, Path::new("/models/a=b"));
        for wrong in ["", "tiny", "=folder", "tiny="] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_typed_of_numbers_comes_before_what_was_said_earlier() {
        let args = |quantize, activations| NumericsArgs {
            quantize,
            activations,
            kv_cache: Some(KvCacheFormat::Bf16),
        };
        let before = args(Some(Quantize::Q4K), Some(ActivationFormat::Int8));
        assert_eq!(NumericsArgs::default().or(before), before);
        let typed = args(Some(Quantize::Stored), None);
        assert_eq!(
            typed.or(before),
            args(Some(Quantize::Stored), Some(ActivationFormat::Int8))
        );
        assert_eq!(
            before.typed(),
            " --quantize q4_k --activations int8 --kv-cache bf16"
        );
        assert_eq!(NumericsArgs::default().typed(), "");
    }

    #[test]
    fn clients_are_sent_to_a_folder_that_says_which_tokenizer_it_has() {
        for settings in ["tokenizer_config.json", "config.json"] {
            let folder = tempfile::tempdir().unwrap();
            assert_eq!(tokenizer_id(folder.path()), None);
            std::fs::write(folder.path().join(settings), "{}").unwrap();
            let path = folder.path().canonicalize().unwrap();
            assert_eq!(tokenizer_id(&path).as_deref(), path.to_str());
        }
    }
}
