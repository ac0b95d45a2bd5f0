//! The tokenizer and the chat template inside a GGUF file.
//!
//! Two kinds are in use: `gpt2`, byte-level BPE with a list of merges and the name of the family's
//! pattern, and `llama`, SentencePiece with a score for each piece. Only the file's header is read.

mod write;

use super::document::{Added, Cut, Document, Kind};
use super::pattern;
use crate::Error;
use serde_json::Value as JsonValue;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use tinkrs_gguf::{Header, Value};

/// What a token is, as files number it.
mod token_type {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// The part of a GGUF file that is about text.
#[derive(Debug)]
pub(crate) struct Embedded {
    path: PathBuf,
    header: Header,
    bytes: Vec<u8>,
}

impl Embedded {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::file(path))?;
        let (header, bytes) = Header::read(file).map_err(|e| Error::tokenizer(path, e))?;
        Ok(Self {
            path: path.to_owned(),
            header,
            bytes,
        })
    }

    /// Returns the chat template, if there is one.
    pub(crate) fn chat_template(&self) -> Option<&str> {
        self.header.text("tokenizer.chat_template")
    }

    /// Returns a token that the file names by its role, such as `bos` or `eos`, with its spelling.
    pub(crate) fn named(&self, role: &str) -> Option<(u32, String)> {
        let id = match self.get(&format!("{role}_token_id"))? {
            Value::Integer(id) => u32::try_from(*id).ok()?,
            _ => return None,
        };
        let tokens = self.tokens().ok()?;
        let spelling = tokens.get(id as usize)?;
        Some((id, (*spelling).to_owned()))
    }

    /// Puts the tokenizer together.
    pub(crate) fn tokenizer(&self) -> Result<tokenizers::Tokenizer, Error> {
        let document = match self.header.text("tokenizer.ggml.model") {
            Some("gpt2") => self.byte_level()?,
            Some("llama") => self.sentence_piece()?,
            Some(other) => {
                let what = format!("a tokenizer of kind `{other}`");
                return Err(self.unsupported(what, "the kinds `gpt2` and `llama`"));
            }
            None => {
                let what = "a GGUF file without a tokenizer".to_owned();
                return Err(self.unsupported(what, "files with `tokenizer.ggml.model`"));
            }
        };
        let built = document.build(None);
        built.map_err(|error| Error::tokenizer(&self.path, error))
    }

    fn byte_level(&self) -> Result<Document, Error> {
        let name = self.header.text("tokenizer.ggml.pre").unwrap_or("default");
        let cut: Cut = pattern::of_gguf(name).ok_or_else(|| {
            let what = format!("the pre-tokenizer `{name}`");
            self.unsupported(what, pattern::GGUF_NAMES)
        })?;
        let merges = self.array("merges")?.texts(&self.bytes);
        let merges = merges.ok_or_else(|| self.malformed("merges"))?;
        let pair = |merge: &&str| {
            let (left, right) = merge.split_once(' ')?;
            Some([left.to_owned(), right.to_owned()])
        };
        let merges: Option<Vec<_>> = merges.iter().map(pair).collect();
        Ok(Document {
            merges: merges.ok_or_else(|| self.malformed("merges"))?,
            kind: Kind::ByteLevel(cut),
            begin: self.around("bos", pattern::begins_text(name)),
            end: self.around("eos", false),
            ..self.pieces()?
        })
    }

    fn sentence_piece(&self) -> Result<Document, Error> {
        let tokens = self.tokens()?;
        let scores = self.array("scores")?.floats(&self.bytes);
        let scores = scores.filter(|scores| scores.len() == tokens.len());
        let scores = scores.ok_or_else(|| self.malformed("scores"))?;
        let types = self.types(tokens.len())?;
        let unknown = types.iter().position(|kind| *kind == token_type::UNKNOWN);
        let is_normal = |id: usize| types[id] == token_type::NORMAL;
        Ok(Document {
            merges: merges_by_score(&tokens, &scores, is_normal),
            kind: Kind::SentencePiece {
                unknown: unknown.map(|id| tokens[id].to_owned()),
                space_in_front: self.flag("add_space_prefix").unwrap_or(true),
            },
            begin: self.around("bos", true),
            end: self.around("eos", false),
            ..self.pieces()?
        })
    }

    /// Returns the vocabulary and the tokens that are found in text before anything else.
    fn pieces(&self) -> Result<Document, Error> {
        let tokens = self.tokens()?;
        let types = self.types(tokens.len())?;
        let mut document = Document::default();
        for ((id, piece), kind) in (0u32..).zip(tokens).zip(types) {
            // Room that the model's vocabulary has beyond its tokenizer's.
            if kind == token_type::UNUSED {
                continue;
            }
            document.vocab.insert(piece.to_owned(), JsonValue::from(id));
            let special = matches!(kind, token_type::CONTROL | token_type::UNKNOWN);
            if special || kind == token_type::USER_DEFINED {
                document.added.push(Added {
                    id,
                    content: piece.to_owned(),
                    special,
                    lstrip: false,
                    rstrip: false,
                });
            }
        }
        Ok(document)
    }

    /// Returns the token that is put around texts, if the file or its family says so.
    fn around(&self, role: &str, default: bool) -> Option<(u32, String)> {
        let wanted = self.flag(&format!("add_{role}_token")).unwrap_or(default);
        wanted.then(|| self.named(role))?
    }

    fn tokens(&self) -> Result<Vec<&str>, Error> {
        let tokens = self.array("tokens")?.texts(&self.bytes);
        tokens.ok_or_else(|| self.malformed("tokens"))
    }

    fn types(&self, count: usize) -> Result<Vec<i32>, Error> {
        if self.get("token_type").is_none() {
            return Ok(vec![token_type::NORMAL; count]);
        }
        let types = self.array("token_type")?.integers(&self.bytes);
        let types = types.filter(|types| types.len() == count);
        let types = types.ok_or_else(|| self.malformed("token_type"))?;
        // A kind that there is not is none of those that mean something.
        Ok(types
            .into_iter()
            .map(|kind| i32::try_from(kind).unwrap_or(0))
            .collect())
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.header.metadata.get(&format!("tokenizer.ggml.{name}"))
    }

    fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    fn array(&self, name: &str) -> Result<&tinkrs_gguf::Array, Error> {
        match self.get(name) {
            Some(Value::Array(array)) => Ok(array),
            _ => Err(self.malformed(name)),
        }
    }

    fn malformed(&self, name: &str) -> Error {
        let problem = format!("`tokenizer.ggml.{name}` is missing or malformed");
        Error::tokenizer(&self.path, problem)
    }

    fn unsupported(&self, what: String, supported: &'static str) -> Error {
        Error::Unsupported {
            path: self.path.clone(),
            what,
            supported,
        }
    }
}

/// Returns the pairs that make up each piece, those of the best pieces first: SentencePiece joins the
/// pair whose whole has the highest score.
fn merges_by_score(
    pieces: &[&str],
    scores: &[f64],
    is_normal: impl Fn(usize) -> bool,
) -> Vec<[String; 2]> {
    let ids: HashMap<&str, usize> = pieces
        .iter()
        .enumerate()
        .filter(|(id, _)| is_normal(*id))
        .map(|(id, piece)| (*piece, id))
        .collect();
    let mut order: Vec<usize> = (0..pieces.len()).filter(|id| is_normal(*id)).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut merges = Vec::new();
    for id in order {
        let piece = pieces[id];
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push([left.to_owned(), right.to_owned()]);
            }
        }
    }
    merges
}

#[cfg(test)]
mod tests;
