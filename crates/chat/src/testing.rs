//! What unit tests share.

use crate::{Format, Renderer, Tokenizer, Vocabulary};
use std::sync::{Arc, LazyLock};

/// A small byte-level tokenizer with the control tokens of every format; see
/// `tests/reference/golden.py`.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
        Arc::new(Tokenizer::from_path(path).unwrap())
    });
    Arc::clone(&TOKENIZER)
}

pub(crate) fn vocabulary() -> Vocabulary {
    Vocabulary::new(tokenizer())
}

pub(crate) fn renderer(format: impl Format + 'static) -> Renderer {
    Renderer::new(tokenizer(), format).unwrap()
}

/// A tokenizer from the text of its file.
pub(crate) fn tokenizer_of(json: &str) -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, json).unwrap();
    Arc::new(Tokenizer::from_path(&path).unwrap())
}

/// A tokenizer in the manner of SentencePiece: a few letters, and a space in front of everything.
pub(crate) fn spacing_tokenizer() -> Arc<Tokenizer> {
    tokenizer_of(
        r#"{"version": "1.0", "post_processor": null, "pre_tokenizer": null,
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": false, "byte_fallback": false,
            "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "▁b": 5, ":": 6, "\n": 7,
                "x": 8, "▁x": 9, "<": 10, ">": 11, "u": 12, "n": 13, "k": 14},
            "merges": [["▁", "a"], ["▁", "b"], ["▁", "x"]]}}"#,
    )
}

/// Writes the header of a GGUF file.
#[derive(Default)]
pub(crate) struct GgufWriter {
    entries: u64,
    bytes: Vec<u8>,
}

impl GgufWriter {
    fn key(&mut self, key: &str, kind: u32) {
        self.entries += 1;
        self.str(key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn str(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.bytes());
    }

    fn array(&mut self, key: &str, kind: u32, length: usize) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((length as u64).to_le_bytes());
    }

    pub(crate) fn text(mut self, key: &str, text: &str) -> Self {
        self.key(key, 8);
        self.str(text);
        self
    }

    pub(crate) fn integer(mut self, key: &str, value: u32) -> Self {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn flag(mut self, key: &str, value: bool) -> Self {
        self.key(key, 7);
        self.bytes.push(value.into());
        self
    }

    pub(crate) fn texts<T: AsRef<str>>(mut self, key: &str, texts: &[T]) -> Self {
        self.array(key, 8, texts.len());
        for text in texts {
            self.str(text.as_ref());
        }
        self
    }

    pub(crate) fn integers(mut self, key: &str, values: &[i32]) -> Self {
        self.array(key, 5, values.len());
        self.bytes
            .extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    pub(crate) fn floats(mut self, key: &str, values: &[f32]) -> Self {
        self.array(key, 6, values.len());
        self.bytes
            .extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    /// Writes the file, without tensors.
    pub(crate) fn write(self, path: &std::path::Path) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(0u64.to_le_bytes());
        file.extend(self.entries.to_le_bytes());
        file.extend(self.bytes);
        std::fs::write(path, file).unwrap();
    }
}
