//! A model's tokens as the library wants them.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use tinkrs_chat::TokenBytes;

/// The tokens of a model.
pub(super) struct Vocabulary {
    environment: TokEnv,
    size: u32,
    /// Tokens of whitespace alone.
    blank: Vec<u32>,
}

impl Vocabulary {
    pub(super) fn new(bytes: &TokenBytes, size: usize) -> Self {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let word = |token| {
            let text = bytes.get(token);
            // Tokens that were added to a vocabulary control a conversation; none of them is the text it spells.
            if bytes.is_added(token) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], text].concat()
            } else {
                text.to_vec()
            }
        };
        let is_blank = |token: &u32| {
            let text = bytes.get(*token);
            !text.is_empty() && !bytes.is_added(*token) && text.iter().all(u8::is_ascii_whitespace)
        };
        // Which tokens end a sample is a matter of the request, so the library's own end is a token that no model has.
        let mut words: Vec<Vec<u8>> = (0..size).map(word).collect();
        words.push(vec![TokTrie::SPECIAL_TOKEN_MARKER]);
        let trie = TokTrie::from(&TokRxInfo::new(size + 1, size), &words);
        Self {
            environment: Arc::new(ApproximateTokEnv::new(trie)),
            size,
            blank: (0..size).filter(is_blank).collect(),
        }
    }

    pub(super) fn environment(&self) -> TokEnv {
        Arc::clone(&self.environment)
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn blank(&self) -> &[u32] {
        &self.blank
    }

    /// Returns the text of a token.
    pub(super) fn text(&self, token: u32) -> &[u8] {
        let word = if token < self.size {
            self.environment.tok_trie().token(token)
        } else {
            &[]
        };
        word.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER])
            .unwrap_or(word)
    }

    /// Returns the token that spells a text exactly.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        (0..self.size).find(|token| self.text(*token) == text.as_bytes())
    }
}
