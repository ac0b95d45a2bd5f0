//! Which files of a repository on the Hugging Face Hub a model is made of.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use tinkrs::hub::{Hub, HubError, RemoteFile, Repository};

use crate::output::Hint;

/// The files of a model besides its weights, as far as we or the official SDK read them.
const SMALL: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tiktoken.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Says which part of the weights is in which file.
const INDEX: &str = "model.safetensors.index.json";

/// Asks the Hub what a repository has.
pub(super) async fn look_up(repo: &str, revision: &str) -> anyhow::Result<Repository> {
    match Hub::from_env().repository(repo, revision).await {
        Err(error @ HubError::Unreachable { .. }) => Err(anyhow::Error::new(error)
            .context(Hint("check the network, and HF_ENDPOINT if it is set"))),
        found => Ok(found?),
    }
}

/// Removes what an earlier commit of a repository has left in a folder: beside the files of this
/// one it could be taken for a part of the model.
pub(super) fn remove_others(folder: &Path, files: &[RemoteFile]) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_known = files.iter().any(|file| *file.name == *name);
        if !is_known && name.to_str().is_some_and(is_of_model) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Describes the files that a model is made of.
pub(super) fn files(repository: &Repository) -> anyhow::Result<Vec<RemoteFile>> {
    let names = needed(repository.file_names());
    let names = names.with_context(|| format!("{} cannot be used", repository.name()))?;
    let files = names
        .into_iter()
        .filter_map(|name| repository.file(name).transpose());
    Ok(files.collect::<Result<_, _>>()?)
}

fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

fn is_of_model(name: &str) -> bool {
    SMALL.contains(&name) || name == INDEX || is_weights(name)
}

/// Picks the files that a model is made of.
fn needed<'a>(files: impl Iterator<Item = &'a str>) -> anyhow::Result<Vec<&'a str>> {
    // Only names without a folder: the same weights are often there in other forms, in folders.
    let known: BTreeSet<&str> = files.filter(|name| !name.contains(['/', '\\'])).collect();
    if !known.contains("config.json") {
        bail!("it has no config.json, so it is not a model in the layout of Hugging Face");
    }
    let has_index = known.contains(INDEX);
    let small = SMALL.into_iter().chain([INDEX]);
    let mut names: Vec<&str> = small.filter(|name| known.contains(name)).collect();
    // With an index, the weights are in parts, and a whole file beside them is the same again.
    let weights = known
        .into_iter()
        .filter(|name| is_weights(name) && (!has_index || *name != "model.safetensors"));
    let weights: Vec<&str> = weights.collect();
    if weights.is_empty() {
        return Err(anyhow!("it has no safetensors").context(
            "only weights in safetensors are read; a GGUF file can be downloaded by hand and added",
        ));
    }
    names.extend(weights);
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_model_is_made_of_is_downloaded() {
        let files = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.safetensors",
            "../model.safetensors",
            "training_args.bin",
        ];
        assert_eq!(
            needed(files.into_iter()).unwrap(),
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
        let parts = [
            "config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        let found = needed(parts.into_iter()).unwrap();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(!found.contains(&"model.safetensors"));
    }

    #[test]
    fn what_is_no_model_says_why() {
        let why = |files: &[&'static str]| {
            let found = needed(files.iter().copied());
            format!("{:#}", found.unwrap_err())
        };
        assert!(why(&["data.csv"]).contains("no config.json"));
        assert!(why(&["config.json", "pytorch_model.bin"]).contains("safetensors"));
    }
}
