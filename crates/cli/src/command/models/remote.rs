//! A model's repository on the Hugging Face Hub: which of its files are needed, and how to know them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use tinkrs::auth::Secret;
use tinkrs::external::HttpClient;
use tinkrs::rest::download::{Digest, FileDownload};
use tinkrs_wire::text::percent_encode;

use crate::http;
use crate::hub_access;
use crate::output::Hint;

/// How long the Hub may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// The files of a model besides its weights, as far as we or the official SDK read them.
const SMALL: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
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

/// A repository at one commit.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) http: HttpClient,
    token: Option<Secret>,
    repo: String,
    pub(super) commit: String,
    pub(super) files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    pub(super) size_bytes: u64,
    pub(super) digest: Digest,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Repository {
    /// Asks the Hub what a repository has.
    pub(super) async fn look_up(repo: &str, revision: &str) -> anyhow::Result<Self> {
        let token = hub_access::token();
        let path = format!(
            "/api/models/{repo}/revision/{}?blobs=true",
            percent_encode(revision)
        );
        let endpoint = hub_access::endpoint();
        let http = HttpClient::new(SILENCE);
        let mut request = http.get(&format!("{endpoint}{path}"));
        if let Some(token) = &token {
            request = request.bearer_token(token);
        }
        let response = request.send().await;
        let response = response
            .with_context(|| format!("could not reach the Hub at {endpoint}"))
            .context(Hint("check the network, and HF_ENDPOINT if it is set"))?;
        let status = response.status();
        let response = http::check_status(response).await;
        let response = response.with_context(|| format!("the Hub does not show {repo}"));
        let response = match status {
            401 | 403 | 404 => response.context(Hint(
                "check its name; if it is private or asks you to agree to its terms, do so and set \
                 HF_TOKEN to a token of yours",
            )),
            _ => response,
        }?;
        let info: Info = response
            .json()
            .await
            .context("could not parse the Hub's response")?;
        Ok(Self {
            files: needed(info.siblings).with_context(|| format!("{repo} cannot be used"))?,
            http,
            token,
            repo: repo.to_owned(),
            commit: info.sha,
        })
    }

    /// Removes what an earlier commit of the repository has left in a folder: beside the files of this
    /// one it could be taken for a part of the model.
    pub(super) fn remove_others(&self, folder: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_known = self.files.iter().any(|file| *file.name == *name);
            if !is_known && name.to_str().is_some_and(is_of_model) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Describes the download of a file.
    pub(super) fn download(&self, file: &RemoteFile) -> FileDownload {
        let endpoint = hub_access::endpoint();
        let (repo, commit) = (&self.repo, percent_encode(&self.commit));
        FileDownload {
            name: file.name.clone(),
            url: format!(
                "{endpoint}/{repo}/resolve/{commit}/{}",
                percent_encode(&file.name)
            ),
            token: self.token.clone(),
            size_bytes: file.size_bytes,
            digest: file.digest.clone(),
        }
    }
}

fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

fn is_of_model(name: &str) -> bool {
    SMALL.contains(&name) || name == INDEX || is_weights(name)
}

/// Picks the files that a model is made of.
fn needed(siblings: Vec<Sibling>) -> anyhow::Result<Vec<RemoteFile>> {
    // Only names without a folder: the same weights are often there in other forms, in folders.
    let known: BTreeMap<&str, &Sibling> = siblings
        .iter()
        .filter(|file| !file.rfilename.contains(['/', '\\']))
        .map(|file| (file.rfilename.as_str(), file))
        .collect();
    if !known.contains_key("config.json") {
        bail!("it has no config.json, so it is not a model in the layout of Hugging Face");
    }
    let has_index = known.contains_key(INDEX);
    let small = SMALL.into_iter().chain([INDEX]);
    let mut names: Vec<&str> = small.filter(|name| known.contains_key(name)).collect();
    // With an index, the weights are in parts, and a whole file beside them is the same again.
    let weights = known
        .keys()
        .copied()
        .filter(|name| is_weights(name) && (!has_index || *name != "model.safetensors"));
    let weights: Vec<&str> = weights.collect();
    if weights.is_empty() {
        return Err(anyhow!("it has no safetensors").context(
            "only weights in safetensors are read; a GGUF file can be downloaded by hand and added",
        ));
    }
    names.extend(weights);
    names.into_iter().map(|name| remote(known[name])).collect()
}

fn remote(file: &Sibling) -> anyhow::Result<RemoteFile> {
    let name = file.rfilename.clone();
    let unknown = || anyhow!("the Hub's response has no digest of {name}");
    let (size_bytes, digest) = match &file.lfs {
        Some(lfs) => (lfs.size, Digest::Sha256(lfs.sha256.clone())),
        None => {
            let blob = file.blob_id.clone().ok_or_else(unknown)?;
            (file.size.ok_or_else(unknown)?, Digest::GitBlob(blob))
        }
    };
    if !digest.is_valid() {
        return Err(unknown());
    }
    Ok(RemoteFile {
        name,
        size_bytes,
        digest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sibling(name: &str) -> Sibling {
        Sibling {
            rfilename: name.to_owned(),
            size: Some(1),
            blob_id: Some("a".repeat(40)),
            lfs: None,
        }
    }

    fn names(files: &[&str]) -> anyhow::Result<Vec<String>> {
        let files = needed(files.iter().map(|name| sibling(name)).collect())?;
        Ok(files.into_iter().map(|file| file.name).collect())
    }

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
            names(&files).unwrap(),
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
        let parts = [
            "config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        let found = names(&parts).unwrap();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(!found.contains(&"model.safetensors".to_owned()));
    }

    #[test]
    fn what_is_no_model_says_why() {
        let why = |files: &[&str]| format!("{:#}", names(files).unwrap_err());
        assert!(why(&["data.csv"]).contains("no config.json"));
        assert!(why(&["config.json", "pytorch_model.bin"]).contains("safetensors"));
        let mut file = sibling("config.json");
        file.blob_id = Some("../../x".to_owned());
        assert!(remote(&file).is_err());
    }
}
