//! Constrained decoding: which tokens a sample may go on with.
//!
//! A [`Grammar`] is compiled once for a request; each sample of the request begins a [`Constraint`] of it,
//! which follows that sample token by token. What a grammar is made of, and what text a token stands for,
//! is known to whoever implements the two; a backend asks for the allowed tokens before each draw, and says
//! which one it drew.

use std::fmt;

use crate::Error;

/// What all samples of a request have to keep to.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// Begins a sample.
    fn begin(&self) -> Box<dyn Constraint>;
}

/// What one sample may go on with.
pub trait Constraint: fmt::Debug + Send {
    /// Adds the tokens that may come next to a mask that allows none.
    ///
    /// # Errors
    ///
    /// When finding out takes more work than is allowed. The request fails with it.
    fn allow(&mut self, mask: &mut TokenMask) -> Result<(), Error>;

    /// Takes in the token that was drawn, one of those allowed, and returns whether more may follow. If not,
    /// the sample ends as if it had drawn a stop token.
    ///
    /// # Errors
    ///
    /// As [`allow`](Self::allow).
    fn accept(&mut self, token: u32) -> Result<bool, Error>;
}

/// A set of tokens, with a bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    tokens: usize,
    words: Vec<u32>,
}

impl TokenMask {
    /// Makes an empty set of tokens below `tokens`.
    #[must_use]
    pub fn new(tokens: usize) -> Self {
        Self {
            tokens,
            words: vec![0; tokens.div_ceil(32)],
        }
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds a token. One that is not in the vocabulary is left out.
    pub fn allow(&mut self, token: u32) {
        if (token as usize) < self.tokens {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Adds tokens given as bits, the lowest bit of the first word first. Those beyond the vocabulary are left out.
    pub fn allow_words(&mut self, words: &[u32]) {
        for (mine, word) in self.words.iter_mut().zip(words) {
            *mine |= word;
        }
        if let Some(last) = self.words.last_mut()
            && !self.tokens.is_multiple_of(32)
        {
            *last &= (1 << (self.tokens % 32)) - 1;
        }
    }

    /// Returns whether a token is in the set.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Returns whether no token is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Sets the logits of all other tokens to negative infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (word, logits) in self.words.iter().zip(logits.chunks_mut(32)) {
            match *word {
                0 => logits.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_keeps_to_its_vocabulary() {
        let mut mask = TokenMask::new(40);
        assert!(mask.is_empty());
        mask.allow(40);
        mask.allow_words(&[0, u32::MAX << 8, 1]);
        assert!(mask.is_empty(), "{mask:?}");
        mask.allow(3);
        mask.allow(39);
        let allowed: Vec<u32> = (0..100).filter(|token| mask.contains(*token)).collect();
        assert_eq!(allowed, [3, 39]);
        let mut logits = [1.0; 40];
        mask.apply(&mut logits);
        let left = logits.iter().filter(|logit| **logit == 1.0).count();
        assert_eq!((left, logits[3], logits[39]), (2, 1.0, 1.0));
        mask.clear();
        assert!(mask.is_empty());
    }
}
