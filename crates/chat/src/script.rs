//! A conversation on its way to tokens: control tokens and text, and who makes each.
//!
//! What the model itself writes is marked as an answer. Neighbouring text of the same kind is
//! encoded in one go, as `apply_chat_template` does, but never across the border of an answer:
//! while sampling, the prompt's tokens are there before the first token of the answer is, so in
//! training no token may straddle that border either.

use crate::{Error, Role, Vocabulary};

/// A conversation as tokens, with who made each.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rendered {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// For each token, the message whose answer it is part of; `None` for what the model is
    /// given rather than writes.
    pub answer: Vec<Option<usize>>,
    /// For each token, what it says if it is given to the model. All `None` unless the script
    /// [marks contents](Script::marking_contents).
    pub content: Vec<Option<Content>>,
}

/// What a message that is given to the model says, as opposed to the tokens that frame it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Who says it. What declares tools in a message of its own is the tools'.
    pub role: Role,
    /// The message; `None` for what the format says by itself.
    pub message: Option<usize>,
}

/// A conversation that a [`Format`](crate::Format) is writing.
#[derive(Debug)]
pub struct Script<'v> {
    vocabulary: &'v Vocabulary,
    stop_tokens: &'v [u32],
    parts: Vec<Part>,
    marks_contents: bool,
    speaker: Speaker,
}

#[derive(Debug)]
struct Part {
    what: What,
    speaker: Speaker,
}

/// Who makes the tokens of a part. Text is never encoded across a change of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Speaker {
    answer: Option<usize>,
    content: Option<Content>,
}

#[derive(Debug)]
enum What {
    Control(u32),
    Text(String),
}

impl<'v> Script<'v> {
    /// Begins with nothing; `stop_tokens` are those of the format.
    pub fn new(vocabulary: &'v Vocabulary, stop_tokens: &'v [u32]) -> Self {
        Self {
            vocabulary,
            stop_tokens,
            parts: Vec::new(),
            marks_contents: false,
            speaker: Speaker::default(),
        }
    }

    /// Marks also what messages say that are given to the model, for masks that count them.
    ///
    /// Text is then not encoded across the border between a message and what frames it either.
    #[must_use]
    pub fn marking_contents(mut self) -> Self {
        self.marks_contents = true;
        self
    }

    /// Returns the vocabulary that is written in.
    pub fn vocabulary(&self) -> &'v Vocabulary {
        self.vocabulary
    }

    /// Returns the tokens that end an answer.
    pub fn stop_tokens(&self) -> &'v [u32] {
        self.stop_tokens
    }

    /// Adds text, which never becomes a control token.
    pub fn text(&mut self, text: &str) -> &mut Self {
        if text.is_empty() {
            return self;
        }
        match self.parts.last_mut() {
            Some(Part {
                what: What::Text(before),
                speaker,
            }) if *speaker == self.speaker => before.push_str(text),
            _ => self.push(What::Text(text.to_owned())),
        }
        self
    }

    /// Adds text of the format's own, in which spelled control tokens are meant.
    pub fn trusted(&mut self, text: &str) -> &mut Self {
        let mut rest = text;
        while let Some((start, end, token)) = self.vocabulary.next_control(rest) {
            self.text(&rest[..start]).token(token);
            rest = &rest[end..];
        }
        self.text(rest)
    }

    /// Adds a control token, or its spelling if this vocabulary has no such token.
    pub fn tag(&mut self, spelling: &str) -> &mut Self {
        match self.vocabulary.control(spelling) {
            Some(token) => self.token(token),
            None => self.text(spelling),
        }
    }

    /// Adds a control token by id.
    pub fn token(&mut self, token: u32) -> &mut Self {
        self.push(What::Control(token));
        self
    }

    /// Says that what follows is the answer in this message, or is given to the model.
    pub fn answer(&mut self, message: Option<usize>) -> &mut Self {
        self.speaker = Speaker {
            answer: message,
            content: None,
        };
        self
    }

    /// Says that what follows is what a message says that is given to the model: `message` of the
    /// conversation, or one that the format adds.
    pub fn content(&mut self, role: Role, message: Option<usize>) -> &mut Self {
        self.speaker = Speaker {
            answer: None,
            content: self.marks_contents.then_some(Content { role, message }),
        };
        self
    }

    /// Says that what follows frames messages: neither an answer nor what a message says.
    pub fn frame(&mut self) -> &mut Self {
        self.answer(None)
    }

    /// Returns how many bytes of text there are.
    pub(crate) fn text_bytes(&self) -> usize {
        let bytes = self.parts.iter().map(|part| match &part.what {
            What::Text(text) => text.len(),
            What::Control(_) => 0,
        });
        bytes.sum()
    }

    fn push(&mut self, what: What) {
        self.parts.push(Part {
            what,
            speaker: self.speaker,
        });
    }

    /// Encodes the parts and joins them.
    ///
    /// # Errors
    /// If the tokenizer cannot encode a text.
    pub fn finish(self) -> Result<Rendered, Error> {
        let mut rendered = Rendered::default();
        let control = |part: Option<&Part>| match part?.what {
            What::Control(token) => self.vocabulary.by_token(token),
            What::Text(_) => None,
        };
        for (index, part) in self.parts.iter().enumerate() {
            match &part.what {
                What::Control(token) => rendered.tokens.push(*token),
                What::Text(text) => {
                    let before = control(index.checked_sub(1).and_then(|i| self.parts.get(i)));
                    let after = control(self.parts.get(index + 1));
                    let mut text = text.as_str();
                    // Some tokenizers let a control token swallow the white space beside it.
                    if before.is_some_and(|control| control.rstrip) {
                        text = text.trim_start();
                    }
                    if after.is_some_and(|control| control.lstrip) {
                        text = text.trim_end();
                    }
                    let goes_on = index > 0 && before.is_none();
                    rendered.tokens.extend(if goes_on {
                        self.vocabulary.encode_continuation(text)?
                    } else {
                        self.vocabulary.encode_text(text)?
                    });
                }
            }
            let count = rendered.tokens.len();
            rendered.answer.resize(count, part.speaker.answer);
            rendered.content.resize(count, part.speaker.content);
        }
        Ok(rendered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn no_token_straddles_the_border_of_an_answer() {
        let vocabulary = testing::vocabulary();
        let mut script = Script::new(&vocabulary, &[]);
        script
            .text("th")
            .text("e wea")
            .answer(Some(1))
            .text("ther")
            .answer(None)
            .text("\n");
        let rendered = script.finish().unwrap();
        let prompt = vocabulary.encode_text("the wea").unwrap();
        let answer = vocabulary.encode_text("ther").unwrap();
        assert_eq!(rendered.tokens[..prompt.len()], prompt);
        assert_eq!(
            rendered.tokens[prompt.len()..prompt.len() + answer.len()],
            answer
        );
        let answered = rendered
            .answer
            .iter()
            .filter(|who| **who == Some(1))
            .count();
        assert_eq!(answered, answer.len());
    }

    #[test]
    fn control_tokens_swallow_white_space_where_the_tokenizer_lets_them() {
        let json = r#"{"version": "1.0", "normalizer": null, "post_processor": null, "decoder": null,
            "added_tokens": [
                {"id": 1, "content": "<left>", "special": true, "single_word": false,
                    "lstrip": true, "rstrip": false, "normalized": false},
                {"id": 2, "content": "<right>", "special": true, "single_word": false,
                    "lstrip": false, "rstrip": true, "normalized": false}],
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated",
                "invert": false},
            "model": {"type": "WordLevel", "unk_token": "?", "vocab":
                {"?": 0, "<left>": 1, "<right>": 2, "a": 3, " ": 4, "\n": 5}}}"#;
        let tokenizer = testing::tokenizer_of(json);
        let vocabulary = Vocabulary::new(std::sync::Arc::clone(&tokenizer));
        for text in [
            "a <left> a <right> a",
            "<right>  <left>",
            "<right> a <left>a",
            " a<left>",
        ] {
            let mut script = Script::new(&vocabulary, &[]);
            script.trusted(text);
            let expected = tokenizer.encode_without_special_tokens(text).unwrap();
            assert_eq!(script.finish().unwrap().tokens, expected, "{text}");
        }
    }

    #[test]
    fn a_tag_without_a_token_of_its_own_is_text() {
        let vocabulary = testing::vocabulary();
        let mut script = Script::new(&vocabulary, &[]);
        script.tag("<|im_end|>").tag("<no_such_tag>");
        let tokens = script.finish().unwrap().tokens;
        assert_eq!(tokens[0], vocabulary.control("<|im_end|>").unwrap());
        assert_eq!(vocabulary.decode(&tokens[1..]).unwrap(), "<no_such_tag>");
    }
}
