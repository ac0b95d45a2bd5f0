//! An answer as text while it is being written.
//!
//! Tokens are not characters: one character may take several, and a few characters may turn out to
//! be the beginning of a stop text, a tool call or a thought. So what may still change is held back. The pieces
//! joined are the thinking and the content that [`Renderer::parse`] finds in the whole.
//!
//! The whole text is read by [`Format::parse`] at first and when one of the format's marks has come; in between, what comes belongs to
//! what came before it ([`Open`]), and is not read again. An answer full of marks is read anew only as often
//! as a fixed multiple of its length allows ([`READINGS`]), so that the work is linear whatever a model writes.

use crate::response::{PYTHON_TAG, THINK_END};
use crate::{CallPart, CallReader, Error, Format, Renderer, Response, TextStream, ToolCall};

/// How often the text of an answer may be read as a whole, on average over its length.
const READINGS: usize = 32;
/// What is read however often: an answer begins with what says what follows.
const SHORT: usize = 4 << 10;

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
    /// How many have begun to be.
    begun_calls: usize,
    open: Open,
    /// How many bytes were read so far.
    work: usize,
    /// How long the text was when it was read last.
    read: usize,
}

/// What the end of the text belongs to.
#[derive(Clone, Debug, Default)]
enum Open {
    /// Only reading all of it can tell.
    #[default]
    Unknown,
    /// Words, up to the next mark.
    Words { are_thoughts: bool, held: Held },
    /// A tool call, up to this text, or to the end.
    Call {
        end: Option<&'static str>,
        reader: CallReader,
    },
}

/// What is new in an answer.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Delta {
    /// Words that are said.
    pub content: String,
    /// Words that are thought before.
    pub thinking: String,
    /// Tool calls that are complete now. A call whose end is not marked comes when the answer is finished: until
    /// then it may still turn out to be none.
    pub tool_calls: Vec<ToolCall>,
    /// The same calls as they are written: the arguments of calls in JSON come before these are complete. A call that has
    /// begun here and turns out to be none is repeated as words.
    pub call_parts: Vec<CallPart>,
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
            begun_calls: 0,
            open: Open::Unknown,
            work: 0,
            read: 0,
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
        // Whatever follows the end is not a part of the answer, which `finish` completes.
        if self.ended || new.is_empty() {
            return Ok(Delta::default());
        }
        self.text.push_str(&new);
        let mut delta = Delta::default();
        if self.follow(&new, &mut delta) {
            return Ok(delta);
        }
        let length = self.text.len();
        let allowed = SHORT + READINGS * length;
        if self.work + length <= allowed || length >= 2 * self.read {
            self.read(&mut delta);
        }
        Ok(delta)
    }

    /// Adds a piece to what is open. Returns whether it belongs there, all of it.
    fn follow(&mut self, new: &str, delta: &mut Delta) -> bool {
        self.work += new.len();
        match &mut self.open {
            Open::Unknown => false,
            Open::Words { are_thoughts, held } => {
                let Some(words) = held.push(new, self.renderer.format()) else {
                    self.open = Open::Unknown;
                    return false;
                };
                let (shown, part) = if *are_thoughts {
                    (&mut self.thinking, &mut delta.thinking)
                } else {
                    (&mut self.content, &mut delta.content)
                };
                shown.0.push_str(&words);
                *part = words;
                true
            }
            Open::Call { end, reader } => {
                // The mark may have begun in pieces before.
                let begin = self.text.len() - new.len();
                let found = end.and_then(|end| {
                    let from = self
                        .text
                        .floor_char_boundary(begin.saturating_sub(end.len() - 1));
                    self.text[from..].find(end).map(|place| from + place)
                });
                let inside = &self.text[begin..found.unwrap_or(self.text.len()).max(begin)];
                if let Some(part) = reader.push(inside) {
                    let part = numbered(part, &mut self.begun_calls);
                    delta.call_parts.push(part);
                }
                found.is_none()
            }
        }
    }

    /// Reads all of the text.
    fn read(&mut self, delta: &mut Delta) {
        self.work += self.text.len();
        self.read = self.text.len();
        let renderer = self.renderer.clone();
        let format = renderer.format();
        let mut message = format.parse(&self.text, false).message;
        let thinking = message.thinking.take().unwrap_or_default();
        let content = message.content;
        let (open_call, close_call) = format.call_block();
        let block = self.text.rfind(open_call);
        let is_closed = block.is_none_or(|start| self.text[start..].contains(close_call));
        let in_block =
            !is_closed && (content.contains(open_call) || message.tool_calls.len() > self.calls);
        let complete = match block {
            // A call that is closed is certain.
            Some(_) if is_closed => message.tool_calls.len(),
            Some(_) => self.calls,
            None => message.tool_calls.len().saturating_sub(1),
        };
        let new = message.tool_calls[self.calls.min(complete)..complete].to_vec();
        self.complete(&new, delta);
        delta.tool_calls = new;

        let certain_thinking = if content.is_empty() {
            certain(&thinking, &[THINK_END])
        } else {
            thinking.len()
        };
        let certain_content = certain_content(format, &content);
        let before = (self.thinking.0.len(), self.content.0.len());
        delta.thinking = self.thinking.show(&thinking[..certain_thinking]);
        delta.content = self.content.show(&content[..certain_content]);

        // In a format without calls, what looks like one is words.
        let has_calls = format.marks().contains(&open_call);
        self.open = if in_block && !has_calls {
            Open::Unknown
        } else if in_block {
            let start = block.map_or(0, |start| start + open_call.len());
            self.open_call(start, Some(close_call), delta)
        } else if format.may_be_call(&content) {
            let start = self.text.len() - self.text.trim_start().len();
            let tag = self.text[start..].starts_with(PYTHON_TAG);
            self.open_call(start + if tag { PYTHON_TAG.len() } else { 0 }, None, delta)
        } else if content.is_empty() {
            self.open_words(true, &thinking, certain_thinking, before.0)
        } else {
            self.open_words(false, &content, certain_content, before.1)
        };
    }

    /// Follows a call whose text begins here.
    fn open_call(&mut self, start: usize, end: Option<&'static str>, delta: &mut Delta) -> Open {
        let mut reader = CallReader::default();
        if let Some(part) = reader.push(&self.text[start..]) {
            delta.call_parts.push(numbered(part, &mut self.begun_calls));
        }
        Open::Call { end, reader }
    }

    /// Follows words, if these are what the text ends with: they have grown with it, by what it ends with.
    fn open_words(&self, are_thoughts: bool, words: &str, certain: usize, before: usize) -> Open {
        let shown = if are_thoughts {
            &self.thinking
        } else {
            &self.content
        };
        let (words, text) = (words.trim_end(), self.text.trim_end());
        if words.len() <= before || shown.0.len() != certain || certain > words.len() {
            return Open::Unknown;
        }
        let since = text[end_of_marks(text, self.renderer.format())..].trim_start();
        let same = words.trim_start();
        if since.is_empty() || !(same.ends_with(since) || since.ends_with(same)) {
            return Open::Unknown;
        }
        let held = [&words[certain..], &self.text[text.len()..]].concat();
        let held = Held {
            text: held,
            blank: 0,
        };
        Open::Words { are_thoughts, held }
    }

    /// Takes note of calls that are complete, and adds what was not returned of them.
    fn complete(&mut self, new: &[ToolCall], delta: &mut Delta) {
        let streamed = match std::mem::take(&mut self.open) {
            Open::Call { reader, .. } => reader.has_begun(),
            Open::Unknown | Open::Words { .. } => false,
        };
        for call in new.iter().skip(usize::from(streamed)) {
            let part = CallPart {
                name: Some(call.name.clone()),
                arguments: call.arguments.to_string(),
                ..CallPart::default()
            };
            delta.call_parts.push(numbered(part, &mut self.begun_calls));
        }
        self.calls += new.len();
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
        let message = &response.message;
        let new = message.tool_calls.get(self.calls..).unwrap_or_default();
        let mut rest = Delta::default();
        self.complete(new, &mut rest);
        rest.tool_calls = new.to_vec();
        rest.thinking = self
            .thinking
            .show(message.thinking.as_deref().unwrap_or_default());
        rest.content = self.content.show(&message.content);
        Ok((rest, response))
    }
}

/// Gives a part of a call its place among the calls.
fn numbered(mut part: CallPart, begun: &mut usize) -> CallPart {
    *begun += usize::from(part.name.is_some());
    part.index = begun.saturating_sub(1);
    part
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

/// Words that are held back because of what may follow.
#[derive(Clone, Debug)]
struct Held {
    text: String,
    /// How many bytes at its beginning are known to be white space.
    blank: usize,
}

impl Held {
    /// Adds a piece, and returns what is certain now; `None` if a mark has come. Looks at the new piece, and no further back
    /// than a mark is long.
    fn push(&mut self, new: &str, format: &dyn Format) -> Option<String> {
        let longest = marks_of(format).map(str::len).max().unwrap_or(0);
        let from = self.text.len().saturating_sub(longest);
        self.text.push_str(new);
        let from = self.text.floor_char_boundary(from);
        let end = &self.text[from..];
        if marks_of(format).any(|mark| end.contains(mark)) {
            return None;
        }
        let marked = marks_of(format).map(|mark| begun(end, mark)).max();
        let marked = self.text.len() - marked.unwrap_or(0);
        // The space at the end of an answer is not a part of it.
        let blank = self.blank.min(marked);
        let certain = match self.text[blank..marked].trim_end().len() {
            0 => 0,
            solid => blank + solid,
        };
        self.blank = if certain == 0 { marked } else { 0 };
        let rest = self.text.split_off(certain);
        Some(std::mem::replace(&mut self.text, rest))
    }
}

/// Returns all that words end at.
fn marks_of(format: &dyn Format) -> impl Iterator<Item = &'static str> {
    let (open, close) = format.call_block();
    let marks = format.marks().iter().chain(format.needs()).copied();
    marks.chain([THINK_END, open, close])
}

/// Returns where the last mark in a text ends.
fn end_of_marks(text: &str, format: &dyn Format) -> usize {
    let ends = marks_of(format).filter_map(|mark| Some(text.rfind(mark)? + mark.len()));
    ends.max().unwrap_or(0)
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
mod tests;
