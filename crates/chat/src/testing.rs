//! What unit tests share.

use crate::{Format, Renderer, Tokenizer, Vocabulary};
use std::sync::Arc;

/// A small byte-level tokenizer with the control tokens of every format; see
/// `tests/reference/golden.py`.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    Arc::new(Tokenizer::from_path(path).unwrap())
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
