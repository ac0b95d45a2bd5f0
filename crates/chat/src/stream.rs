//! An answer as text while it is being written.
//!
//! Tokens are not characters: one character may take several, and a few characters may turn out to
//! be the beginning of a stop text, a tool call or a thought. So the text so far is read anew with each
//! token, and what may still change is held back. The pieces joined are the thinking and the content
//! that [`Renderer::parse`] finds in the whole.

use crate::response::THINK_END;
use crate::{Error, Format, Renderer, Response, TextStream, ToolCall};

/// Turns the tokens of an answer into text, piece by piece. See [`Renderer::stream`].
#[derive(Clone, Debug)]
pub struct AnswerStream {
    renderer: Renderer,
    /// What the prompt has begun of the answer: `<think>`, the prefilled words, or nothing.
    begun: String,
    stream: TextStream,
    /// The text so far, `begun` included, as far as its characters are whole.
    text: String,
    /// Whether the answer's last token has come.
    ended: bool,
    content: Shown,
    thinking: Shown,
    /// How many tool calls have been returned.
    calls: usize,
}

/// What is new in an answer.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Delta {
    /// Words that are said.
    pub content: String,
    /// Words that are thought before.
    pub thinking: String,
    /// Tool calls that are complete now. The last call of an answer comes when it is finished: until
    /// then it may still turn out to be none.
    pub tool_calls: Vec<ToolCall>,
}

impl Renderer {
    /// Starts to read an answer to a prompt, token by token.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn stream(&self, prompt: &[u32]) -> Result<AnswerStream, Error> {
        let end = &prompt[prompt.len().saturating_sub(8)..];
        let end = self.vocabulary().decode(end)?;
        Ok(self.stream_after(self.format().begun(&end)))
    }

    /// Starts to read an answer that the prompt has begun with this text, as
    /// [`RenderOptions::prefill`](crate::RenderOptions::prefill) does.
    pub fn stream_after(&self, begun: &str) -> AnswerStream {
        AnswerStream {
            renderer: self.clone(),
            begun: begun.to_owned(),
            stream: TextStream::new(),
            text: begun.to_owned(),
            ended: false,
            content: Shown::default(),
            thinking: Shown::default(),
            calls: 0,
        }
    }
}

impl AnswerStream {
    /// Takes the next token, and returns the text that is now certain.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn push(&mut self, token: u32) -> Result<Delta, Error> {
        let tokenizer = self.renderer.vocabulary().tokenizer();
        let new = self.stream.push(token, tokenizer)?;
        self.ended |= self.renderer.end_of_answer(&[token]).is_some();
        if self.ended {
            // Whatever follows is not a part of the answer, which `finish` completes.
            return Ok(Delta::default());
        }
        self.text.push_str(&new);
        let format = self.renderer.format();
        let mut message = format.parse(&self.text, false).message;
        let thinking = message.thinking.take().unwrap_or_default();
        let complete = message.tool_calls.len().saturating_sub(1);
        let tool_calls = message.tool_calls[self.calls.min(complete)..complete].to_vec();
        self.calls += tool_calls.len();
        let certain_thinking = if message.content.is_empty() {
            certain(&thinking, &[THINK_END])
        } else {
            thinking.len()
        };
        Ok(Delta {
            thinking: self.thinking.show(&thinking[..certain_thinking]),
            content: self
                .content
                .show(&message.content[..certain_content(format, &message.content)]),
            tool_calls,
        })
    }

    /// Returns the tokens so far.
    pub fn tokens(&self) -> &[u32] {
        self.stream.tokens()
    }

    /// Ends the answer, and returns the text that was held back and the answer as a whole.
    ///
    /// # Errors
    /// If the tokenizer cannot put the tokens together.
    pub fn finish(mut self) -> Result<(Delta, Response), Error> {
        let response = self.renderer.parse_after(&self.begun, self.tokens())?;
        let thinking = response.message.thinking.as_deref().unwrap_or_default();
        let rest = Delta {
            thinking: self.thinking.show(thinking),
            content: self.content.show(&response.message.content),
            tool_calls: response
                .message
                .tool_calls
                .get(self.calls..)
                .unwrap_or_default()
                .to_vec(),
        };
        Ok((rest, response))
    }
}

/// The part of a text that has been returned.
#[derive(Clone, Debug, Default)]
struct Shown(String);

impl Shown {
    /// Returns what is new of a text.
    fn show(&mut self, text: &str) -> String {
        // A tokenizer whose text changes backwards waits for the next token, or the end.
        let new = text.strip_prefix(self.0.as_str()).unwrap_or_default();
        self.0.push_str(new);
        new.to_owned()
    }
}

/// Returns how many bytes of what is said will stay, whatever follows.
fn certain_content(format: &dyn Format, text: &str) -> usize {
    if format.may_be_call(text) {
        return 0;
    }
    let (call, end) = format.call_block();
    let open = text.rfind(call);
    let open = open.filter(|start| !text[*start..].contains(end));
    certain(&text[..open.unwrap_or(text.len())], format.marks())
}

/// Returns how many bytes of a text will stay if it may go on with one of these marks.
fn certain(text: &str, marks: &[&str]) -> usize {
    let marked = marks.iter().map(|mark| text.len() - begun(text, mark));
    let text = &text[..marked.min().unwrap_or(text.len())];
    // The space at the end of an answer is not a part of it.
    text.trim_end().len()
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
    use crate::format::{ChatMl, KNOWN};
    use crate::testing::{renderer, tokenizer};

    fn formats() -> impl Iterator<Item = Renderer> {
        let all = KNOWN.iter();
        all.map(|known| Renderer::with_format(tokenizer(), (known.make)()).unwrap())
    }

    /// Pushes a text token by token; returns the pieces and the whole.
    fn pieces(renderer: &Renderer, tokens: &[u32]) -> (Vec<Delta>, Response) {
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
            "<think>\none two three\n\n four </th not yet",
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
                    if let (true, tinkrs_types::sampling::Stop::AnyToken(stops)) =
                        (stopped, renderer.stop())
                    {
                        tokens.extend([stops[0]]);
                    }
                    let (pieces, response) = pieces(&renderer, &tokens);
                    assert_eq!(response, renderer.parse(&tokens).unwrap());
                    let format = renderer.format().name();
                    let join =
                        |part: fn(&Delta) -> &str| pieces.iter().map(part).collect::<String>();
                    let content = join(|piece| &piece.content);
                    assert_eq!(content, response.message.content, "{format}: {text:?}");
                    let thinking = join(|piece| &piece.thinking);
                    let thought = response.message.thinking.unwrap_or_default();
                    assert_eq!(thinking, thought, "{format}: {text:?}");
                }
            }
        }
    }

    #[test]
    fn text_comes_before_the_answer_ends_and_never_half_a_character() {
        let renderer = renderer(ChatMl);
        let text = "one two three 🦀 four";
        let tokens = renderer.vocabulary().encode_text(text).unwrap();
        let (pieces, _) = pieces(&renderer, &tokens);
        let contents = pieces.iter().map(|piece| piece.content.as_str());
        let early: Vec<_> = contents.filter(|piece| !piece.is_empty()).collect();
        assert!(early.len() > 3, "{pieces:?}");
        let half = |piece: &&&str| piece.contains(char::REPLACEMENT_CHARACTER);
        assert_eq!(early.iter().find(half), None);
    }

    #[test]
    fn a_thought_that_the_prompt_begins_is_not_said() {
        let renderer = renderer(ChatMl);
        let encode = |text: &str| renderer.vocabulary().tokenizer().encode(text).unwrap();
        let mut stream = renderer.stream(&encode("a prompt <think>\n")).unwrap();
        let (mut said, mut thought) = (String::new(), String::new());
        for token in encode("I wonder.\n</think>\n\nYes.") {
            let delta = stream.push(token).unwrap();
            said += &delta.content;
            thought += &delta.thinking;
        }
        assert_eq!(thought, "I wonder.", "before the answer ends");
        let (rest, response) = stream.finish().unwrap();
        assert_eq!(said + &rest.content, "Yes.");
        assert_eq!(response.message.thinking.as_deref(), Some("I wonder."));
    }

    #[test]
    fn a_prefilled_answer_is_read_as_one_with_what_the_model_adds() {
        let renderer = renderer(ChatMl);
        let mut stream = renderer.stream_after("The weather is");
        let mut said = String::new();
        for token in renderer.vocabulary().encode_continuation(" fine.").unwrap() {
            said += &stream.push(token).unwrap().content;
        }
        let (rest, response) = stream.finish().unwrap();
        assert_eq!(said + &rest.content, "The weather is fine.");
        assert_eq!(response.message.content, "The weather is fine.");
    }
}
