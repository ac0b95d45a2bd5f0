//! The bytes of every token, so that samples can stop at a text.
//!
//! They are read from the `tokenizer.json` of a Hugging Face folder. Two ways of writing bytes as
//! text are in use: GPT-2's, where each byte has a visible character of its own, and
//! SentencePiece's, where `▁` is a space and `<0x0A>` a byte that is no character.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tinkrs_backend::Detokenizer;

/// The bytes of every token of a model.
#[derive(Debug)]
pub struct Vocabulary {
    tokens: Vec<Vec<u8>>,
}

/// Why a vocabulary cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The file cannot be read.
    #[error("could not read {path}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },

    /// The file is not a tokenizer.
    #[error("{path} is not a tokenizer")]
    Malformed {
        /// The file.
        path: String,
        /// Why.
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct TokenizerFile {
    model: TokenizerModel,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct TokenizerModel {
    vocab: Pieces,
}

/// The pieces by their ids: BPE names them, Unigram lists them with their scores.
#[derive(Deserialize)]
#[serde(untagged)]
enum Pieces {
    Named(HashMap<String, u32>),
    Listed(Vec<(String, f64)>),
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

impl Vocabulary {
    /// Reads the vocabulary of a model's folder, for tokens below `size`.
    ///
    /// # Errors
    ///
    /// When the folder has no `tokenizer.json`, or that is something else.
    pub fn load(folder: &Path, size: usize) -> Result<Self, VocabularyError> {
        let path = folder.join("tokenizer.json");
        let name = || path.display().to_string();
        let text = std::fs::read(&path).map_err(|source| VocabularyError::Io {
            path: name(),
            source,
        })?;
        let file = serde_json::from_slice(&text).map_err(|source| VocabularyError::Malformed {
            path: name(),
            source,
        })?;
        Ok(Self::new(file, size))
    }

    fn new(file: TokenizerFile, size: usize) -> Self {
        let is_byte_level = file.decoder.to_string().contains("ByteLevel");
        let read = match is_byte_level {
            true => byte_level(),
            false => HashMap::new(),
        };
        let bytes = |piece: &str| match is_byte_level {
            true => piece.chars().flat_map(|c| letter(&read, c)).collect(),
            false => sentence_piece(piece),
        };
        // A token that no piece stands for never completes a text.
        let mut tokens = vec![Vec::new(); size];
        let mut set = |id: u32, bytes: Vec<u8>| {
            if let Some(token) = tokens.get_mut(id as usize) {
                *token = bytes;
            }
        };
        match file.model.vocab {
            Pieces::Named(pieces) => {
                for (piece, id) in pieces {
                    set(id, bytes(&piece));
                }
            }
            Pieces::Listed(pieces) => {
                for (id, (piece, _)) in (0..).zip(pieces) {
                    set(id, bytes(&piece));
                }
            }
        }
        for token in file.added_tokens {
            set(token.id, token.content.into_bytes());
        }
        Self { tokens }
    }
}

impl Detokenizer for Vocabulary {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.tokens.get(token as usize).map_or(&[], Vec::as_slice)
    }
}

/// GPT-2's letters for bytes: visible Latin-1 characters stand for themselves, the other bytes take
/// the characters from U+0100 on, in their order.
fn byte_level() -> HashMap<char, u8> {
    let is_visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut letters = HashMap::new();
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let letter = match is_visible(byte) {
            true => char::from(byte),
            false => {
                let letter = char::from_u32(next).expect("these are letters of Latin Extended-A");
                next += 1;
                letter
            }
        };
        letters.insert(letter, byte);
    }
    letters
}

fn letter(letters: &HashMap<char, u8>, c: char) -> Vec<u8> {
    match letters.get(&c) {
        Some(byte) => vec![*byte],
        None => c.to_string().into_bytes(),
    }
}

fn sentence_piece(piece: &str) -> Vec<u8> {
    let hex = piece.strip_prefix("<0x").and_then(|p| p.strip_suffix('>'));
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => piece.replace('▁', " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(file: Value, size: usize) -> Vocabulary {
        Vocabulary::new(serde_json::from_value(file).unwrap(), size)
    }

    #[test]
    fn byte_level_pieces_are_bytes() {
        let vocabulary = read(
            json!({
                "model": {"vocab": {"Ġhi": 0, "Ċ": 1, "Ã©": 2}},
                "added_tokens": [{"id": 3, "content": "<|end|>"}],
                "decoder": {"type": "ByteLevel"},
            }),
            5,
        );
        let bytes: Vec<_> = (0..6).map(|token| vocabulary.token_bytes(token)).collect();
        let expected: [&[u8]; 6] = [b" hi", b"\n", "é".as_bytes(), b"<|end|>", b"", b""];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn sentence_pieces_have_marked_spaces_and_bytes() {
        let vocabulary = read(
            json!({
                "model": {"vocab": [["▁hi", -1.0], ["<0x0A>", -2.0], ["é", -3.0]]},
                "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
            }),
            3,
        );
        let bytes: Vec<_> = (0..3).map(|token| vocabulary.token_bytes(token)).collect();
        assert_eq!(bytes, [b" hi".as_slice(), b"\n", "é".as_bytes()]);
    }
}
