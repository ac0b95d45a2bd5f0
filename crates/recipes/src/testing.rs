//! What unit tests share.

use crate::renderer::{Format, Renderer, Vocabulary};
use std::sync::Arc;
use tinkrs::Tokenizer;

/// A small byte-level tokenizer with the control tokens of every format; see
/// `tests/reference/golden.py`.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    Arc::new(Tokenizer::from_path(path).unwrap())
}

pub(crate) fn vocabulary() -> Vocabulary {
    Vocabulary::new(tokenizer())
}

pub(crate) fn renderer(format: Format) -> Renderer {
    Renderer::new(tokenizer(), format).unwrap()
}
