//! An answer as text while it is being written.
//!
//! Tokens are not characters: one character may take several, and a few characters may turn out to
//! be the beginning of a stop text, a tool call or a thought. So every new token is read together
//! with all before it, and what may still change is held back. The pieces joined are the content
//! that [`Renderer::parse`] finds in the whole.
//!
//! Reading all tokens again for each one costs microseconds a token, which no model notices.

use super::parse::{TOOL_CALL, TOOL_CALL_END};
use super::{Renderer, Response, role_colon};
use crate::Error;

/// What may begin at the end of a text and is not a part of what is said.
const MARKS: [&str; 4] = [role_colon::STOP, TOOL_CALL, "<think>", "<|python_tag|>"];

/// Turns the tokens of an answer into text, piece by piece. See [`Renderer::stream`].
#[derive(Clone, Debug)]
pub struct AnswerStream {
    renderer: Renderer,
    /// What the prompt has begun of the answer: `<think>`, or nothing.
    begun: &'static str,
    tokens: Vec<u32>,
    shown: String,
}

impl Renderer {
    /// Starts to read an answer to a prompt, token by token.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn stream(&self, prompt: &[u32]) -> Result<AnswerStream, Error> {
        let end = self
            .vocabulary
            .decode(&prompt[prompt.len().saturating_sub(8)..])?;
        Ok(AnswerStream {
            begun: match end.trim_end().ends_with("<think>") {
                true => "<think>",
                false => "",
            },
            renderer: self.clone(),
            tokens: Vec::new(),
            shown: String::new(),
        })
    }
}

impl AnswerStream {
    /// Takes the next token, and returns the text that is now certain.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn push(&mut self, token: u32) -> Result<String, Error> {
        self.tokens.push(token);
        let content = self.response()?.message.content;
        Ok(self.show(&content[..certain(&content)]))
    }

    /// Returns the tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Ends the answer, and returns the text that was held back and the answer as a whole.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn finish(mut self) -> Result<(String, Response), Error> {
        let response = self.response()?;
        let rest = self.show(&response.message.content);
        Ok((rest, response))
    }

    fn response(&self) -> Result<Response, Error> {
        self.renderer.parse_behind(self.begun, &self.tokens)
    }

    /// Returns what is new of a text.
    fn show(&mut self, text: &str) -> String {
        // A tokenizer whose text changes backwards waits for the next token, or the end.
        let new = text.strip_prefix(self.shown.as_str()).unwrap_or_default();
        self.shown.push_str(new);
        new.to_owned()
    }
}

/// Returns how many bytes of a text will stay, whatever follows.
fn certain(text: &str) -> usize {
    // JSON may be a tool call, and then is not said at all.
    if text.trim_start().starts_with('{') {
        return 0;
    }
    let open = text.rfind(TOOL_CALL);
    let open = open.filter(|start| !text[*start..].contains(TOOL_CALL_END));
    let text = &text[..open.unwrap_or(text.len())];
    let marked = MARKS.iter().map(|mark| text.len() - begun(text, mark));
    let text = &text[..marked.min().unwrap_or(text.len())];
    // Half a character is read as one that stands for all that is wrong, and the space at the end
    // of an answer is not a part of it.
    let half = |c: char| c == char::REPLACEMENT_CHARACTER || c.is_whitespace();
    text.trim_end_matches(half).len()
}

/// Returns how many bytes at the end of a text are the beginning of a mark.
fn begun(text: &str, mark: &str) -> usize {
    let lengths = (1..=mark.len()).rev();
    let mut lengths = lengths.filter(|length| mark.is_char_boundary(*length));
    let found = lengths.find(|length| text.ends_with(&mark[..*length]));
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::renderer::Format;
    use crate::testing::renderer;

    fn formats() -> [Renderer; 4] {
        let thinking = Format::Qwen3 { thinking: true };
        [Format::ChatMl, Format::RoleColon, Format::Llama3, thinking].map(renderer)
    }

    /// Pushes a text token by token; returns the pieces and the whole.
    fn pieces(renderer: &Renderer, tokens: &[u32]) -> (Vec<String>, Response) {
        let mut stream = renderer.stream(&[]).unwrap();
        let mut pieces = Vec::new();
        for token in tokens {
            pieces.push(stream.push(*token).unwrap());
        }
        let (rest, response) = stream.finish().unwrap();
        pieces.push(rest);
        (pieces, response)
    }

    #[test]
    fn the_pieces_of_an_answer_are_the_answer() {
        let texts = [
            "Hello there, how are you?",
            "  white space \n\n on both sides \n",
            "Zoë says: 🦀 日本語 and 👩‍👩‍👧",
            "Fine.\n\nUser: and you?",
            "a line\n\nUse it.",
            "<think>\nhm\n</think>\n\nhello",
            "x <tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\ny",
            "<tool_call>\n{oops\n</tool_call> z",
            "<tool_call>\n{\"name\"",
            "{\"name\": \"add\", \"parameters\": {}}",
            "1 < 2 and <",
            "",
        ];
        for renderer in formats() {
            for text in texts {
                let mut tokens = renderer.vocabulary().tokenizer().encode(text).unwrap();
                for stopped in [false, true] {
                    if let (true, tinkrs::sampling::Stop::AnyToken(stops)) =
                        (stopped, renderer.stop())
                    {
                        tokens.extend([stops[0]]);
                    }
                    let (pieces, response) = pieces(&renderer, &tokens);
                    assert_eq!(response, renderer.parse(&tokens).unwrap());
                    let format = renderer.format().name();
                    let joined = pieces.concat();
                    assert_eq!(joined, response.message.content, "{format}: {text:?}");
                }
            }
        }
    }

    #[test]
    fn text_comes_before_the_answer_ends_and_never_half_a_character() {
        let renderer = renderer(Format::ChatMl);
        let text = "one two three 🦀 four";
        let tokens = renderer.vocabulary().encode_text(text).unwrap();
        let (pieces, _) = pieces(&renderer, &tokens);
        let early: Vec<_> = pieces.iter().filter(|piece| !piece.is_empty()).collect();
        assert!(early.len() > 3, "{pieces:?}");
        let whole = |piece: &&&String| !piece.contains(char::REPLACEMENT_CHARACTER);
        assert_eq!(early.iter().filter(whole).count(), early.len());
    }

    #[test]
    fn a_thought_that_the_prompt_begins_is_not_said() {
        let renderer = renderer(Format::ChatMl);
        let encode = |text: &str| renderer.vocabulary().tokenizer().encode(text).unwrap();
        let mut stream = renderer.stream(&encode("a prompt <think>\n")).unwrap();
        let mut said = String::new();
        for token in encode("I wonder.\n</think>\n\nYes.") {
            said += &stream.push(token).unwrap();
        }
        let (rest, response) = stream.finish().unwrap();
        assert_eq!(said + &rest, "Yes.");
        assert_eq!(response.message.thinking.as_deref(), Some("I wonder."));
    }
}
