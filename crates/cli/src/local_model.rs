//! Models on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tinkrs_engine::weights::{GgufFile, HuggingFaceFolder};
use tinkrs_engine::{Model, Precision, Threads};
use tinkrs_server::{BaseModel, Vocabulary};

use crate::report::Hint;

/// A folder or file with a model, and the name that clients use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NamedModel {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Reads `NAME=PATH`.
pub(crate) fn read(text: &str) -> Result<NamedModel, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(NamedModel {
            name: name.to_owned(),
            path: path.into(),
        }),
        _ => Err("expected NAME=PATH, such as `my-org/my-model=./folder`".to_owned()),
    }
}

/// Returns the model that comes with this program, whose files are put into a data folder.
pub(crate) fn nano(data: &Path) -> anyhow::Result<NamedModel> {
    let path = data.join("models").join("tinkrs-nano");
    tinkrs_nano::write_to(&path)
        .with_context(|| format!("could not write the built-in model to {}", path.display()))?;
    Ok(NamedModel {
        name: tinkrs_nano::NAME.to_owned(),
        path,
    })
}

/// Starts the threads that compute; one for each core unless given.
pub(crate) fn threads(count: Option<usize>) -> anyhow::Result<Threads> {
    let threads = match count {
        Some(count) => Threads::new(count),
        None => Threads::all_cores(),
    };
    threads.context("could not start the threads that compute")
}

/// Loads a model.
pub(crate) fn load(named: &NamedModel, threads: &Threads) -> anyhow::Result<BaseModel> {
    let NamedModel { name, path } = named;
    let is_gguf = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    let model = if is_gguf {
        GgufFile::open(path).and_then(|file| Model::load(&file, Precision::Stored, threads))
    } else {
        HuggingFaceFolder::open(path)
            .and_then(|folder| Model::load(&folder, Precision::Stored, threads))
    };
    let model = model
        .with_context(|| format!("could not load model `{name}` from {}", path.display()))
        .context(Hint(
            "a model is a Hugging Face folder with config.json and safetensors, or a GGUF file",
        ))?;
    let vocabulary = match path.join("tokenizer.json").exists() {
        true => Some(Arc::new(Vocabulary::load(path, model.config().vocab)?)),
        false => None,
    };
    Ok(BaseModel {
        tokenizer: tokenizer(path),
        vocabulary,
        ..BaseModel::new(name, Arc::new(model))
    })
}

/// Returns the folder if clients can load a tokenizer from it.
fn tokenizer(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let has_one = folder.join("tokenizer_config.json").exists();
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
}
