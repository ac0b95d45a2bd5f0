//! Text from tokens, one token at a time.
//!
//! A character may be split over several tokens, and some tokenizers write a piece differently at the
//! beginning of a text. So each new token is decoded together with a few before it, and text comes out
//! once it ends in a whole character.

use crate::{Error, Tokenizer};

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
            return Ok(String::new());
        }
        self.context = self.shown;
        self.shown = self.tokens.len();
        Ok(new)
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
