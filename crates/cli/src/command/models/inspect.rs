//! Looking at a model without loading it.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Serialize;
use tinkrs_chat::{Renderer, Tokenizer};

use crate::local_model::{describe, is_gguf, tokenizer_source};

/// What is known of a model that can be used.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) architecture: String,
    /// How many weights there are.
    pub(super) parameters: u64,
    pub(super) size_bytes: u64,
    pub(super) max_context: usize,
    /// What it cannot be used for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// Reads the configuration, the headers of the weights and the tokenizer.
pub(super) fn inspect(path: &Path) -> anyhow::Result<Facts> {
    ensure!(path.exists(), "{} is not there any more", path.display());
    let description = describe(path)?;
    Ok(Facts {
        architecture: description.family,
        parameters: description.parameters,
        size_bytes: size_bytes(path)?,
        max_context: description.context,
        note: tokenizer_note(path)?,
    })
}

fn size_bytes(path: &Path) -> anyhow::Result<u64> {
    let read = || -> std::io::Result<u64> {
        if !path.is_dir() {
            return Ok(path.metadata()?.len());
        }
        let mut total = 0;
        for entry in std::fs::read_dir(path)? {
            // The Hub's cache has links to files elsewhere.
            let found = std::fs::metadata(entry?.path())?;
            total += if found.is_file() { found.len() } else { 0 };
        }
        Ok(total)
    };
    read().with_context(|| format!("could not look at {}", path.display()))
}

/// Says what a missing tokenizer means. One that is there has to be right.
fn tokenizer_note(path: &Path) -> anyhow::Result<Option<String>> {
    let only_tokens = |problem: String| {
        format!("{problem}: `serve` can, `train`, `sample` and `chat` cannot use it")
    };
    let Some(source) = tokenizer_source(path) else {
        return Ok(Some(only_tokens("it has no tokenizer.json".to_owned())));
    };
    match Tokenizer::from_path(&source) {
        Err(tinkrs_chat::Error::Unsupported { what, .. }) if is_gguf(&source) => {
            let problem = format!("it has no tokenizer.json, and {what} is not supported");
            return Ok(Some(only_tokens(problem)));
        }
        tokenizer => tokenizer.context("its tokenizer cannot be read")?,
    };
    let renderer = Renderer::from_path(&source);
    Ok(renderer.err().map(|error| {
        let error = anyhow::Error::new(error);
        format!("`train`, `sample` and `chat` have no chat format for it: {error:#}")
    }))
}
