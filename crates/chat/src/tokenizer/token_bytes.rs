//! The bytes of every token, so that a sample can stop at a text wherever tokens split it.
//!
//! Two ways of writing bytes as text are in use: GPT-2's, where each byte has a visible character of
//! its own, and SentencePiece's, where `▁` is a space and `<0x0A>` a byte that is no character.

use super::Tokenizer;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// The bytes that each token of a vocabulary stands for.
///
/// The bytes of a sequence's tokens joined are its text; control tokens have their spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBytes {
    tokens: Vec<Vec<u8>>,
    added: HashSet<u32>,
}

impl TokenBytes {
    /// Returns the bytes of a token; none if there is no such token.
    pub fn get(&self, token: u32) -> &[u8] {
        self.tokens.get(token as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a token was added to the vocabulary by hand, as control tokens are: text becomes such a token
    /// only where it spells it in full.
    pub fn is_added(&self, token: u32) -> bool {
        self.added.contains(&token)
    }
}

impl Tokenizer {
    /// Returns the bytes of the tokens below `size`, which is the model's: it may have room for more
    /// tokens than the tokenizer knows.
    pub fn token_bytes(&self, size: usize) -> TokenBytes {
        let decoder = serde_json::to_string(&self.inner.get_decoder());
        let is_byte_level = decoder.is_ok_and(|decoder| decoder.contains("ByteLevel"));
        let bytes = |piece: &str| {
            if is_byte_level {
                byte_level(piece)
            } else {
                sentence_piece(piece)
            }
        };
        let model = self.inner.get_model();
        let added = self.inner.get_added_tokens_decoder();
        let of_token = |id: u32| match added.get(&id) {
            Some(token) => token.content.clone().into_bytes(),
            // A token that no piece stands for never completes a text.
            None => tokenizers::Model::id_to_token(model, id)
                .map_or_else(Vec::new, |piece| bytes(&piece)),
        };
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        TokenBytes {
            tokens: (0..size).map(of_token).collect(),
            added: added.keys().copied().collect(),
        }
    }
}

/// GPT-2's letters for bytes: visible Latin-1 characters stand for themselves, the other bytes take
/// the characters from U+0100 on, in their order.
pub(super) static LETTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let is_visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| {
        let byte = u8::try_from(byte).expect("the array has 256 places");
        if is_visible(byte) {
            char::from(byte)
        } else {
            others.next().expect("characters from U+0100 on do not end")
        }
    })
});

static BYTES: LazyLock<HashMap<char, u8>> =
    LazyLock::new(|| LETTERS.iter().copied().zip(0..=u8::MAX).collect());

fn byte_level(piece: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(piece.len());
    for character in piece.chars() {
        match BYTES.get(&character) {
            Some(byte) => bytes.push(*byte),
            None => bytes.extend(character.to_string().bytes()),
        }
    }
    bytes
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
    use crate::testing;

    #[test]
    fn byte_level_pieces_are_bytes() {
        let tokenizer = testing::tokenizer_of(
            r#"{"version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "model": {"type": "BPE", "vocab": {"Ġhi": 0, "Ċ": 1, "Ã©": 2}, "merges": []},
            "added_tokens": [{"id": 3, "content": "<|end|>", "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false}],
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true}}"#,
        );
        let bytes = tokenizer.token_bytes(5);
        let bytes: Vec<_> = (0..6).map(|token| bytes.get(token)).collect();
        let expected: [&[u8]; 6] = [b" hi", b"\n", "é".as_bytes(), b"<|end|>", b"", b""];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn sentence_pieces_have_marked_spaces_and_bytes() {
        let tokenizer = testing::tokenizer_of(
            r#"{"version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "model": {"type": "Unigram", "unk_id": 2,
                "vocab": [["▁hi", -1.0], ["<0x0A>", -2.0], ["é", -3.0]]},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
            "added_tokens": []}"#,
        );
        let bytes = tokenizer.token_bytes(3);
        let bytes: Vec<_> = (0..3).map(|token| bytes.get(token)).collect();
        assert_eq!(bytes, [b" hi".as_slice(), b"\n", "é".as_bytes()]);
    }

    #[test]
    fn the_bytes_of_a_texts_tokens_are_the_text() {
        let tokenizer = testing::tokenizer();
        let bytes = tokenizer.token_bytes(tokenizer.vocab_size());
        let text = "Zoë: 🦀 <|im_end|>\n\tthe weather";
        let tokens = tokenizer.encode(text).unwrap();
        let joined: Vec<u8> = tokens
            .iter()
            .flat_map(|token| bytes.get(*token))
            .copied()
            .collect();
        assert_eq!(joined, text.as_bytes());
    }
}
