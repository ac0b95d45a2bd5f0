//! Encoding plain text: from the beginning, or going on from other text.
//!
//! Tokenizers in the manner of SentencePiece put a space in front of whatever they encode. For
//! the first words of a document that is right. For text that goes on from other text it would
//! be a space that is not in the text: `Assistant:` and ` yes` must join to `Assistant: yes`, with the
//! tokens that a model would write there.

use crate::Error;

/// A tokenizer that leaves special tokens in text alone.
#[derive(Debug)]
pub(super) struct PlainText {
    tokenizer: tokenizers::Tokenizer,
    adds_space: bool,
}

/// Texts to go on from. One of them does not merge with the text behind it.
const BEFORE: [&str; 3] = ["\n", ":", "x"];

impl PlainText {
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer) -> Self {
        let mut plain = Self {
            tokenizer: tokenizer.clone(),
            adds_space: false,
        };
        plain.tokenizer.set_encode_special_tokens(true);
        let letter = plain.begin("a").unwrap_or_default();
        let twice = plain.tokenizer.decode(&letter.repeat(2), false);
        plain.adds_space = twice.is_ok_and(|text| text.trim().contains(' '));
        plain
    }

    /// Encodes a text that begins a document, or stands behind a control token.
    pub(super) fn begin(&self, text: &str) -> Result<Vec<u32>, Error> {
        // The fast form leaves out the positions in the text, which are not used here.
        let encoding = self.tokenizer.encode_fast(text, false);
        Ok(encoding.map_err(Error::Tokenize)?.get_ids().to_vec())
    }

    /// Encodes a text that stands behind other text.
    pub(super) fn go_on(&self, text: &str) -> Result<Vec<u32>, Error> {
        if self.adds_space {
            for before in BEFORE {
                let joined = self.begin(&format!("{before}{text}"))?;
                if let Some(tokens) = joined.strip_prefix(self.begin(before)?.as_slice()) {
                    return Ok(tokens.to_vec());
                }
            }
        }
        self.begin(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn text_that_goes_on_gets_no_space_of_its_own() {
        let plain = PlainText::new(testing::spacing_tokenizer().inner());
        assert!(plain.adds_space);
        let text = |tokens: &[u32]| plain.tokenizer.decode(tokens, false).unwrap();
        for (first, second) in [
            ("a:", " b"),
            ("a", "b"),
            ("a", "\nb"),
            ("a ", ":b"),
            ("", "b"),
        ] {
            let first_tokens = plain.begin(first).unwrap();
            let joined = [first_tokens, plain.go_on(second).unwrap()].concat();
            assert_eq!(text(&joined), format!("{first}{second}"));
        }
        assert_eq!(plain.go_on(" b").unwrap(), plain.begin("b").unwrap());
    }

    #[test]
    fn other_tokenizers_encode_all_text_alike() {
        let plain = PlainText::new(testing::tokenizer().inner());
        assert!(!plain.adds_space);
        assert_eq!(
            plain.go_on(" weather").unwrap(),
            plain.begin(" weather").unwrap()
        );
    }
}
