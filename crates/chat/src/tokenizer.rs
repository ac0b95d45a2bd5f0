//! Turning text into tokens and back, and the files that say how.

mod document;
mod gguf;
mod pattern;
mod text_files;
mod tiktoken;
mod token_bytes;

use crate::Error;
use std::fmt;
use std::path::{Path, PathBuf};

#[cfg(feature = "templates")]
pub(crate) use gguf::Embedded;
pub use token_bytes::TokenBytes;

/// Turns text into tokens and back.
///
/// It can be used from any thread; share it with [`Arc`](std::sync::Arc).
///
/// ```
/// use tinkrs_chat::Tokenizer;
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
///
/// let tokenizer = Tokenizer::from_path(folder)?;
/// let tokens = tokenizer.encode("The weather today is")?;
/// assert_eq!(tokenizer.decode(&tokens)?, "The weather today is");
/// # Ok::<(), tinkrs_chat::Error>(())
/// ```
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Loads the tokenizer of a folder, or of a file: `tokenizer.json`, a GGUF file with a tokenizer
    /// inside, or tiktoken's `tiktoken.model` with the `tokenizer_config.json` beside it.
    ///
    /// # Errors
    /// If there is no such file, or it is not a tokenizer that is supported.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = in_folder(path.as_ref());
        let inner = if is_gguf(&path) {
            gguf::Embedded::open(&path)?.tokenizer()?
        } else if is_tiktoken(&path) {
            tiktoken::load(&path)?
        } else {
            let inner = tokenizers::Tokenizer::from_file(&path);
            inner.map_err(|error| Error::tokenizer(&path, error))?
        };
        Self::new(path, inner)
    }

    /// Takes a tokenizer as its file describes it.
    fn new(path: PathBuf, mut inner: tokenizers::Tokenizer) -> Result<Self, Error> {
        // A file may carry the settings that its author trained with. Prompts must not be cut by them.
        inner
            .with_truncation(None)
            .map_err(|error| Error::tokenizer(&path, error))?;
        inner.with_padding(None);
        Ok(Self { path, inner })
    }

    /// Returns the tokens of a text, with the special tokens that the tokenizer puts around one.
    ///
    /// # Errors
    /// If the text has something for which the tokenizer has no token, not even an unknown one.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.tokens(text, true)
    }

    /// Returns the tokens of a text and no others.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_without_special_tokens(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.tokens(text, false)
    }

    /// Returns the text of tokens, special tokens included.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, Error> {
        self.inner.decode(tokens, false).map_err(Error::Tokenize)
    }

    /// Returns the text of tokens, leaving special tokens out.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_without_special_tokens(&self, tokens: &[u32]) -> Result<String, Error> {
        self.inner.decode(tokens, true).map_err(Error::Tokenize)
    }

    /// Returns the token that is spelled so, for special tokens above all.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns how many tokens there are, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Returns the file that this was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>, Error> {
        // The fast form leaves out the positions in the text, which are not used here.
        let encoding = self.inner.encode_fast(text, special);
        Ok(encoding.map_err(Error::Tokenize)?.get_ids().to_vec())
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

const TIKTOKEN: &str = "tiktoken.model";

/// Returns the file that a path means: itself, or the one in the folder that it names.
fn in_folder(path: &Path) -> PathBuf {
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    if !path.is_dir() && (is_json || is_gguf(path) || is_tiktoken(path)) {
        return path.to_owned();
    }
    let file = path.join("tokenizer.json");
    let tiktoken = path.join(TIKTOKEN);
    if !file.exists() && tiktoken.exists() {
        return tiktoken;
    }
    file
}

/// Returns whether a path is that of a GGUF file.
pub(crate) fn is_gguf(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn is_tiktoken(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == TIKTOKEN)
        || path
            .extension()
            .is_some_and(|extension| extension == "tiktoken")
}

#[cfg(test)]
mod tests {
    use crate::Tokenizer;

    /// Two words, with a special token in front of each text.
    const WORDS: &str = r#"{"version": "1.0", "normalizer": null, "decoder": null,
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 10}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "hello"},
        "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
        "model": {"type": "WordLevel", "unk_token": "[UNK]",
            "vocab": {"hello": 0, "world": 1, "[UNK]": 2}}}"#;

    #[test]
    fn text_becomes_tokens_and_tokens_become_text() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), WORDS).unwrap();
        let tokenizer = Tokenizer::from_path(folder.path()).unwrap();
        let text = "hello world hello there";
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokens, [3, 0, 1, 0, 2], "neither cut nor filled up");
        let plain = tokenizer.encode_without_special_tokens(text).unwrap();
        assert_eq!(plain, [0, 1, 0, 2]);
        assert_eq!(tokenizer.decode(&[3, 0, 1]).unwrap(), "<s> hello world");
        let plain = tokenizer.decode_without_special_tokens(&[3, 0, 1]);
        assert_eq!(plain.unwrap(), "hello world");
        assert_eq!(tokenizer.token_id("<s>"), Some(3));
        assert_eq!(tokenizer.vocab_size(), 4);
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Tokenizer::from_path(folder.path().join("none")).unwrap_err();
        assert!(
            missing.to_string().contains("none/tokenizer.json"),
            "{missing}"
        );
        std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
        let broken = Tokenizer::from_path(folder.path()).unwrap_err().to_string();
        assert!(
            broken.ends_with("tokenizer.json cannot be read"),
            "{broken}"
        );
    }
}
