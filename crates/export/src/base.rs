//! The model that an adapter was trained on: weights, settings, tokenizer and chat template.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tinkrs_chat::Tokenizer;
use tinkrs_chat::format::ChatTemplate;
use tinkrs_engine::weights::{GgufFile, HuggingFaceFolder, WeightSource};

use crate::Error;

/// Files of a Hugging Face folder that say how text and answers are made, copied as they are.
pub(crate) const TEXT_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// A model: a Hugging Face folder, or a GGUF file.
pub struct Base {
    pub(crate) path: PathBuf,
    pub(crate) weights: Box<dyn WeightSource>,
    /// `config.json` as it is; none of a GGUF file.
    config: Option<Map<String, Value>>,
    /// `tokenizer_config.json`.
    tokenizer_config: Map<String, Value>,
    pub(crate) tokenizer: Option<Tokenizer>,
    /// The source of the chat template.
    pub(crate) template: Option<String>,
}

impl Base {
    /// Opens a model and checks that it is whole.
    ///
    /// # Errors
    ///
    /// When a file is missing or malformed, or the engine does not support the model.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if is_gguf(path) {
            return Ok(Self {
                weights: Box::new(GgufFile::open(path)?),
                config: None,
                tokenizer_config: Map::new(),
                tokenizer: tokenizer(path)?,
                template: ChatTemplate::source_of(path).ok(),
                path: path.to_owned(),
            });
        }
        let weights = HuggingFaceFolder::open(path)?;
        let has_tokenizer = ["tokenizer.json", "tiktoken.model"]
            .iter()
            .any(|name| path.join(name).exists());
        Ok(Self {
            weights: Box::new(weights),
            config: Some(object(&path.join("config.json"))?.unwrap_or_default()),
            tokenizer_config: object(&path.join("tokenizer_config.json"))?.unwrap_or_default(),
            tokenizer: if has_tokenizer {
                tokenizer(path)?
            } else {
                None
            },
            template: ChatTemplate::source_of(path).ok(),
            path: path.to_owned(),
        })
    }

    /// Returns the model's weights and shape.
    #[must_use]
    pub fn weights(&self) -> &dyn WeightSource {
        &*self.weights
    }

    /// Returns whether this is a GGUF file.
    #[must_use]
    pub fn is_gguf(&self) -> bool {
        self.config.is_none()
    }

    /// Returns the name on the Hub that the model's own settings have, if they have one.
    #[must_use]
    pub fn hub_id(&self) -> Option<&str> {
        let name = self.config.as_ref()?.get("_name_or_path")?.as_str()?;
        is_hub_id(name).then_some(name)
    }

    /// Returns `config.json`, as it is where there is one.
    pub(crate) fn config_json(&self) -> Map<String, Value> {
        self.config.clone().unwrap_or_else(|| {
            let written = self.weights.config().to_hf_json();
            serde_json::from_str(&written).expect("a written configuration is an object")
        })
    }

    /// Returns a token by its role, such as `bos_token`, with its spelling.
    pub(crate) fn named_token(&self, role: &str) -> Option<u32> {
        let spelling = match self.tokenizer_config.get(role)? {
            Value::String(spelling) => spelling,
            token => token.get("content")?.as_str()?,
        };
        self.tokenizer.as_ref()?.token_id(spelling)
    }

    /// Returns the files that say how text and answers are made, by name.
    pub(crate) fn text_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
        let mut files = Vec::new();
        if !self.is_gguf() {
            for name in TEXT_FILES.into_iter().chain(["generation_config.json"]) {
                let path = self.path.join(name);
                match std::fs::read(&path) {
                    Ok(bytes) => files.push((name, bytes)),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(Error::io("read", &path)(error)),
                }
            }
            return Ok(files);
        }
        let Some(tokenizer) = &self.tokenizer else {
            return Ok(files);
        };
        files.push(("tokenizer.json", tokenizer.to_json()?.into_bytes()));
        let config = self.weights.config();
        let spelling = |id: Option<u32>| tokenizer.decode(&[id?]).ok();
        let settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": spelling(config.bos),
            "eos_token": spelling(config.eos.first().copied()),
            "model_max_length": config.max_context,
            "clean_up_tokenization_spaces": false,
            "chat_template": self.template,
        });
        files.push((
            "tokenizer_config.json",
            format!("{settings:#}\n").into_bytes(),
        ));
        Ok(files)
    }
}

/// Returns whether a name is that of a model on the Hub, `owner/name`.
#[must_use]
pub fn is_hub_id(name: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && part.chars().all(allowed) && !part.starts_with(['.', '-'])
    };
    name.split_once('/')
        .is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}

/// Returns whether a path is that of a GGUF file.
fn is_gguf(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Loads a tokenizer. A GGUF file may have none, or one of a kind that is not supported.
fn tokenizer(path: &Path) -> Result<Option<Tokenizer>, Error> {
    match Tokenizer::from_path(path) {
        Err(tinkrs_chat::Error::Unsupported { .. }) if is_gguf(path) => Ok(None),
        tokenizer => Ok(Some(tokenizer?)),
    }
}

/// Reads a file with a JSON object, if it is there.
fn object(path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|_| Error::Json {
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::is_hub_id;

    #[test]
    fn a_hub_id_is_an_owner_and_a_name() {
        for id in ["Qwen/Qwen3-8B", "tinkrs/nano", "a/b.c_d"] {
            assert!(is_hub_id(id), "{id}");
        }
        for other in [
            "tiny",
            "/models/tiny",
            "./tiny",
            "../a",
            "a/b/c",
            "a/",
            "/a",
            "C:\\x/y",
            "",
        ] {
            assert!(!is_hub_id(other), "{other}");
        }
    }
}
