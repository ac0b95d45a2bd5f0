//! Takes what was trained away: an adapter and its base model become files that other tools read.
//!
//! ```
//! use tinkrs_export::{Base, Export, Progress, What};
//! use tinkrs_engine::weights::GgufFile;
//!
//! let folder = tempfile::tempdir()?;
//! tinkrs_nano::write_to(folder.path())?;
//! let base = Base::open(folder.path())?;
//! let to = tempfile::tempdir()?;
//! let what = What::Gguf(None);
//! let export = Export::plan(&base, None, "nano", what)?;
//! export.write(to.path(), &Progress::default())?;
//! GgufFile::open(to.path().join("model.gguf"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Base`] is the model: a Hugging Face folder, or a GGUF file;
//! - [`Merged`] is a model with an adapter, merged tensor by tensor;
//! - [`Export`] writes one, in one of the forms of [`What`]; [`Staging`] is a folder for it.
//!
//! No more than one tensor is in memory at a time, and of one that goes into a GGUF file some rows. Before anything is written, [`Export::size`] says how much
//! it will be.

mod base;
mod error;
mod gguf;
mod hugging_face;
mod merged;
mod ollama;
mod staging;

use std::io;
use std::path::Path;

use tinkrs_engine::peft::{self, PeftAdapter};
use tinkrs_engine::weights::Dtype;

pub use base::{Base, is_hub_id};
pub use error::Error;
pub use merged::Merged;
pub use staging::Staging;
pub use tinkrs_engine::weights::Quantisation;

/// The GGUF file in a folder.
const MODEL_FILE: &str = "model.gguf";
/// The GGUF adapter in a folder.
const ADAPTER_FILE: &str = "adapter.gguf";

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The adapter as `peft` reads it.
    Peft,
    /// The merged model as a Hugging Face folder, in one element type or as stored.
    Merged(Option<Dtype>),
    /// The merged model as a GGUF file, quantised or as stored.
    Gguf(Option<Quantisation>),
    /// The adapter as llama.cpp reads it.
    GgufAdapter(Option<Quantisation>),
    /// The GGUF file with a Modelfile for Ollama.
    Ollama(Option<Quantisation>),
}

/// What is told about a tensor or a part of one: its name, and how many bytes were written.
type OnTensor<'a> = &'a dyn Fn(&str, u64) -> io::Result<()>;

/// Says how far an export is.
#[derive(Default)]
pub struct Progress<'a> {
    /// Called after each tensor, or a part of it if it is large. An error ends the export.
    pub on_tensor: Option<OnTensor<'a>>,
}

impl Progress<'_> {
    pub(crate) fn wrote(&self, name: &str, bytes: u64) -> io::Result<()> {
        self.on_tensor.map_or(Ok(()), |told| told(name, bytes))
    }
}

/// An export that is planned: everything that can be wrong with its parts has been looked at.
pub struct Export<'a> {
    plan: Plan<'a>,
    notes: Vec<String>,
}

enum Plan<'a> {
    Peft(PeftAdapter, &'a Base),
    Folder(hugging_face::Folder<'a>),
    Model(gguf::ModelFile<'a>),
    Adapter(gguf::AdapterFile),
    Ollama(gguf::ModelFile<'a>, String),
}

impl<'a> Export<'a> {
    /// Plans an export. `name` is what others are to call the base model: its id on the Hub.
    ///
    /// # Errors
    ///
    /// When the adapter is missing where one is needed, or the format has no way to say what there is.
    pub fn plan(
        base: &'a Base,
        adapter: Option<&'a PeftAdapter>,
        name: &str,
        what: What,
    ) -> Result<Self, Error> {
        let mut notes = Vec::new();
        let needed = || {
            let problem = "there is no adapter to export, only a model".to_owned();
            adapter.ok_or(Error::Unsupported(problem))
        };
        let plan = match what {
            What::Peft => {
                let adapter = PeftAdapter {
                    base_model: name.to_owned(),
                    ..needed()?.clone()
                };
                Plan::Peft(adapter, base)
            }
            What::GgufAdapter(how) => {
                Plan::Adapter(gguf::AdapterFile::plan(base, needed()?, name, how)?)
            }
            What::Merged(dtype) => {
                let merged = Merged::new(base.weights(), adapter, dtype);
                if merged.is_untied() {
                    notes.push(UNTIED.to_owned());
                }
                let folder = hugging_face::Folder::plan(base, merged, hugging_face::SHARD_BYTES);
                Plan::Folder(folder?)
            }
            What::Gguf(how) | What::Ollama(how) => {
                let mut file = gguf::ModelFile::plan(base, adapter, name, how)?;
                notes.append(&mut file.notes);
                if matches!(what, What::Ollama(_)) {
                    let (modelfile, note) = ollama::modelfile(base, MODEL_FILE);
                    notes.extend(note);
                    Plan::Ollama(file, modelfile)
                } else {
                    Plan::Model(file)
                }
            }
        };
        Ok(Self { plan, notes })
    }

    /// Returns how many bytes will be written, give or take the headers of files.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.plan {
            Plan::Peft(adapter, _) => {
                let pairs = adapter.layers.values();
                pairs
                    .map(|pair| 4 * (pair.a.len() + pair.b.len()) as u64)
                    .sum()
            }
            Plan::Folder(folder) => folder.size(),
            Plan::Model(file) => file.size(),
            Plan::Adapter(file) => file.size(),
            Plan::Ollama(file, modelfile) => file.size() + modelfile.len() as u64,
        }
    }

    /// Returns what is worth knowing about the result.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes the export into a folder that is there and empty.
    ///
    /// # Errors
    ///
    /// When a tensor cannot be read, or holds numbers that the format cannot, or the disk refuses.
    pub fn write(&self, folder: &Path, progress: &Progress<'_>) -> Result<(), Error> {
        match &self.plan {
            Plan::Peft(adapter, base) => Ok(peft::save(folder, adapter, base.weights().config())?),
            Plan::Folder(plan) => plan.write(folder, progress),
            Plan::Model(file) => file.write(&folder.join(MODEL_FILE), progress),
            Plan::Adapter(file) => file.write(&folder.join(ADAPTER_FILE), progress),
            Plan::Ollama(file, modelfile) => {
                file.write(&folder.join(MODEL_FILE), progress)?;
                let path = folder.join("Modelfile");
                std::fs::write(&path, modelfile).map_err(Error::io("write", &path))
            }
        }
    }
}

/// What is said where the head and the embedding part.
const UNTIED: &str = "the adapter changes the head, which the base model shares with its embedding: the merged model has \
                      a head of its own (tie_word_embeddings is false)";
