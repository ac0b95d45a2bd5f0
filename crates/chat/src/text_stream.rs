//! Text from tokens, one token at a time.
//!
//! A character may be split over several tokens, and some tokenizers write a piece differently at the
//! beginning of a text. So each new token is decoded together with a few before it, and text comes out
//! once it ends in a whole character.

use crate::{Error, Tokenizer};

/// How many tokens may wait for the rest of a character. Characters have four bytes at most, and tokens at least one.
const MOST_PENDING: usize = 16;

/// Decodes tokens as they come.
///
/// The pieces joined, with what [`rest`](Self::rest) returns at the end, are the text of all tokens.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    tokens: Vec<u32>,
    /// Where the tokens begin that the next ones are decoded with.
    context: usize,
    /// Up to where the text of the tokens has been returned.
    shown: usize,
}

impl TextStream {
    /// Begins with nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Takes the next token, and returns the text that is new and whole.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn push(&mut self, token: u32, tokenizer: &Tokenizer) -> Result<String, Error> {
        self.tokens.push(token);
        let new = self.rest(tokenizer)?;
        // Half a character is decoded as this one, which a text may also really end with: then the
        // next token, or the end, shows it.
        if new.is_empty() || new.ends_with(char::REPLACEMENT_CHARACTER) {
            return self.settle(&new, tokenizer);
        }
        self.context = self.shown;
        self.shown = self.tokens.len();
        Ok(new)
    }

    /// Returns the older part of a text that does not come to an end, because a model writes bytes that are no
    /// characters: what is decoded with each token must not grow.
    fn settle(&mut self, new: &str, tokenizer: &Tokenizer) -> Result<String, Error> {
        if self.tokens.len() - self.shown < MOST_PENDING {
            return Ok(String::new());
        }
        let before = tokenizer.decode(&self.tokens[self.context..self.shown])?;
        // Where a character is split, the older part does not end as the whole goes on.
        for split in (self.shown + 1..=self.tokens.len() - MOST_PENDING / 2)
            .rev()
            .take(4)
        {
            let text = tokenizer.decode(&self.tokens[self.context..split])?;
            let older = text.get(before.len()..).unwrap_or_default();
            if new.starts_with(older) {
                self.context = self.shown;
                self.shown = split;
                return Ok(older.to_owned());
            }
        }
        Ok(String::new())
    }

    /// Returns the text that has not been returned, half characters included.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn rest(&self, tokenizer: &Tokenizer) -> Result<String, Error> {
        let before = tokenizer.decode(&self.tokens[self.context..self.shown])?;
        let text = tokenizer.decode(&self.tokens[self.context..])?;
        // A decoder may change what is in front of a new token; that text was returned already.
        Ok(text.get(before.len()..).unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_pieces_are_the_text_and_never_half_a_character() {
        let texts = [
            "one two three",
            "Zoë says: 🦀 日本語 and 👩‍👩‍👧\n\n",
            "  spaces  on both sides ",
            "<|im_end|>x<think>",
            "a \u{FFFD} b",
            "",
        ];
        for tokenizer in [testing::tokenizer(), testing::spacing_tokenizer()] {
            for text in texts {
                let tokens = tokenizer.encode(text).unwrap();
                let mut stream = TextStream::new();
                let mut pieces = Vec::new();
                for token in &tokens {
                    let piece = stream.push(*token, &tokenizer).unwrap();
                    assert!(!piece.ends_with(char::REPLACEMENT_CHARACTER), "{text:?}");
                    pieces.push(piece);
                }
                pieces.push(stream.rest(&tokenizer).unwrap());
                assert_eq!(pieces.concat(), tokenizer.decode(&tokens).unwrap());
            }
        }
    }

    #[test]
    fn bytes_that_are_no_characters_do_not_pile_up() {
        let tokenizer = testing::tokenizer();
        let tokens = tokenizer.encode("é🦀").unwrap();
        // The first bytes of characters whose other bytes never come, and some whole ones.
        let halves = [
            tokens[0], tokens[2], tokens[3], tokens[0], tokens[1], tokens[2],
        ];
        let endless: Vec<u32> = halves.iter().copied().cycle().take(500).collect();
        for tokens in [
            vec![tokens[0]; 500],
            vec![tokens[1]; 500],
            vec![tokens[2]; 500],
            endless,
        ] {
            let mut stream = TextStream::new();
            let mut text = String::new();
            for token in &tokens {
                text += &stream.push(*token, &tokenizer).unwrap();
                assert!(stream.tokens.len() - stream.context <= 2 * MOST_PENDING);
            }
            text += &stream.rest(&tokenizer).unwrap();
            assert_eq!(text, tokenizer.decode(&tokens).unwrap());
        }
    }

    #[test]
    fn text_comes_with_the_token_that_completes_it() {
        let tokenizer = testing::tokenizer();
        let tokens = tokenizer.encode("é").unwrap();
        assert_eq!(tokens.len(), 2, "one token for each byte");
        let mut stream = TextStream::new();
        assert_eq!(stream.push(tokens[0], &tokenizer).unwrap(), "");
        assert_eq!(stream.push(tokens[1], &tokenizer).unwrap(), "é");
        assert_eq!(stream.rest(&tokenizer).unwrap(), "");
    }
}
