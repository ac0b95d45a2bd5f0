//! Preferences: two answers to the same question, one better than the other.

use crate::Error;
use crate::data::{DataSet, Record, Source, Stored, TooLong, read_jsonl};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use tinkrs_chat::{Conversation, Example, Message, Renderer, Role, TrainOn};

/// One line of a preference file: a conversation or a prompt, and two answers.
///
/// `{"messages": […], "chosen": "…", "rejected": "…"}`, or the same with a `prompt` of plain text. As in
/// files for TRL, or those of UltraFeedback, `prompt` may be messages, and so may be both answers: with the
/// messages before them, or without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Line")]
pub struct Preference {
    /// What was said before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Message>>,
    /// What was written before, where there is no chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The better answer.
    pub chosen: String,
    /// The worse one.
    pub rejected: String,
}

/// The members of a line.
#[derive(Deserialize)]
struct Line {
    messages: Option<Vec<Message>>,
    prompt: Option<Said>,
    chosen: Said,
    rejected: Said,
}

enum Said {
    Text(String),
    Chat(Vec<Message>),
}

/// What is wrong with a message is said as it is.
impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrMessages)
    }
}

struct TextOrMessages;

impl<'de> Visitor<'de> for TextOrMessages {
    type Value = Said;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of messages")
    }

    fn visit_str<E>(self, text: &str) -> Result<Said, E> {
        Ok(Said::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, messages: A) -> Result<Said, A::Error> {
        let messages = Vec::deserialize(SeqAccessDeserializer::new(messages));
        messages.map(Said::Chat)
    }
}

impl TryFrom<Line> for Preference {
    type Error = String;

    fn try_from(line: Line) -> Result<Self, String> {
        let (prompt, given) = match line.prompt {
            Some(Said::Chat(messages)) => (None, Some(messages)),
            Some(Said::Text(prompt)) => (Some(prompt), line.messages),
            None => (None, line.messages),
        };
        let (chosen, rejected) = match (line.chosen, line.rejected) {
            (Said::Text(chosen), Said::Text(rejected)) => {
                return Ok(Self {
                    messages: given,
                    prompt,
                    chosen,
                    rejected,
                });
            }
            (Said::Chat(chosen), Said::Chat(rejected)) => (chosen, rejected),
            _ => {
                return Err(
                    "`chosen` and `rejected` are not alike: two texts, or two lists".into(),
                );
            }
        };
        let split = |mut messages: Vec<Message>, which: &str| match messages.pop() {
            Some(last) if !last.tool_calls.is_empty() || last.thinking.is_some() => Err(format!(
                "`{which}` ends with calls or thoughts, and answers that are compared are texts"
            )),
            Some(last) if last.role == Role::Assistant => Ok((messages, last.content)),
            _ => Err(format!(
                "`{which}` does not end with what the assistant says"
            )),
        };
        let (before, chosen) = split(chosen, "chosen")?;
        let (other, rejected) = split(rejected, "rejected")?;
        if before != other {
            return Err("`chosen` and `rejected` do not answer the same conversation".into());
        }
        // Answers with the messages before them repeat the prompt.
        let messages = match (given, prompt) {
            (Some(given), _) if before.is_empty() => given,
            (Some(given), _) if before == given => given,
            // Beside both answers, UltraFeedback has one of them again with what was said before.
            (Some(given), _) if is_answered(&given, &before) => before,
            (None, Some(prompt)) if before.is_empty() => vec![Message::user(prompt)],
            (None, _) if !before.is_empty() => before,
            _ => return Err("the messages before the answers are not those of the prompt".into()),
        };
        Ok(Self {
            messages: Some(messages),
            prompt: None,
            chosen,
            rejected,
        })
    }
}

/// Returns whether messages are those before an answer, and an answer.
fn is_answered(messages: &[Message], before: &[Message]) -> bool {
    let last = messages.split_last();
    last.is_some_and(|(last, rest)| last.role == Role::Assistant && rest == before)
}

/// Two answers as examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The better answer.
    pub chosen: Example,
    /// The worse one.
    pub rejected: Example,
}

impl Preference {
    /// Reads the preferences of a file.
    ///
    /// # Errors
    /// If the file cannot be read or a line is no preference; the error names the line.
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<Self>, Error> {
        read_jsonl(path)
    }

    /// Renders both answers.
    ///
    /// # Errors
    /// If the chat format cannot write them, or there is not exactly one of `messages` and
    /// `prompt`.
    pub fn pair(&self, renderer: &Renderer) -> Result<Pair, Error> {
        let record = |answer: &str| match (&self.messages, &self.prompt) {
            (Some(messages), None) => {
                let answer = [Message::assistant(answer)];
                let messages = messages.iter().cloned().chain(answer).collect::<Vec<_>>();
                Ok(Record::Chat(Conversation::from(messages)))
            }
            (None, Some(prompt)) => Ok(Record::Pair {
                prompt: prompt.clone(),
                completion: answer.to_owned(),
            }),
            _ => Err(Error::Conversation {
                problem: "needs either `messages` or a `prompt`".to_owned(),
            }),
        };
        let example = |answer| record(answer)?.example(renderer, TrainOn::LastAssistantMessage);
        Ok(Pair {
            chosen: example(&self.chosen)?,
            rejected: example(&self.rejected)?,
        })
    }
}

impl DataSet<Pair> {
    /// Reads and renders the preferences of a file.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is no preference, cannot be rendered, or is too long
    /// and that is refused; the error names the line.
    pub fn read(
        path: impl AsRef<Path>,
        renderer: &Renderer,
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<Self, Error> {
        let source = Source::new(path.as_ref());
        Self::read_all(&[source], renderer, max_tokens, too_long)
    }

    /// Reads and renders the preferences of several files or folders, row by row: what is in memory does not grow with
    /// them, but for some bytes of each pair.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the weights leave nothing for a file, or one with a weight has no pairs.
    pub fn read_all(
        sources: &[Source],
        renderer: &Renderer,
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<Self, Error> {
        Self::gather(sources, |preference: Preference| {
            preference.pair(renderer)?.within(max_tokens, too_long)
        })
    }
}

/// Both answers, one behind the other.
impl Stored for Pair {
    fn tokens(&self) -> usize {
        self.chosen.tokens.len() + self.rejected.tokens.len()
    }

    fn longest(&self) -> usize {
        self.chosen.tokens.len().max(self.rejected.tokens.len())
    }

    fn write(&self, words: &mut Vec<u32>) {
        for example in self.examples() {
            example.write(words);
        }
    }

    fn read(words: &mut impl Iterator<Item = u32>) -> Option<Self> {
        Some(Self {
            chosen: Example::read(words)?,
            rejected: Example::read(words)?,
        })
    }

    fn identity(&self) -> impl Iterator<Item = u32> {
        self.examples().into_iter().flat_map(Stored::identity)
    }
}

impl Pair {
    /// Returns the better answer and the worse one.
    pub(super) fn examples(&self) -> [&Example; 2] {
        [&self.chosen, &self.rejected]
    }

    fn within(self, max_tokens: usize, too_long: TooLong) -> Result<Option<Self>, Error> {
        let chosen = too_long.apply(self.chosen, max_tokens)?;
        let rejected = too_long.apply(self.rejected, max_tokens)?;
        let pair = chosen.zip(rejected);
        Ok(pair.map(|(chosen, rejected)| Self { chosen, rejected }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Preference, String> {
        serde_json::from_str(line).map_err(|error| error.to_string())
    }

    #[test]
    fn preferences_of_trl_and_ultrafeedback_are_read_like_ours() {
        let ours = read(
            r#"{"messages": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"}"#,
        );
        let ours = ours.unwrap();
        let q = r#"{"role": "user", "content": "q"}"#;
        let a = r#"{"role": "assistant", "content": "a"}"#;
        let b = r#"{"role": "assistant", "content": "b"}"#;
        let same = [
            format!(r#"{{"prompt": [{q}], "chosen": [{a}], "rejected": [{b}]}}"#),
            format!(r#"{{"chosen": [{q}, {a}], "rejected": [{q}, {b}]}}"#),
            format!(
                r#"{{"prompt": "q", "prompt_id": "7", "score_chosen": 8.5, "chosen": [{q}, {a}], "rejected": [{q}, {b}]}}"#
            ),
            format!(
                r#"{{"prompt": "q", "prompt_id": "7", "messages": [{q}, {a}], "chosen": [{q}, {a}], "rejected": [{q}, {b}]}}"#
            ),
            format!(r#"{{"prompt": "q", "chosen": [{a}], "rejected": [{b}]}}"#),
        ];
        for line in same {
            assert_eq!(read(&line).as_ref(), Ok(&ours), "{line}");
        }
        let wrong = [
            (
                format!(r#"{{"chosen": "a", "rejected": [{b}]}}"#),
                "not alike",
            ),
            (
                format!(r#"{{"chosen": [{a}, {q}], "rejected": [{b}]}}"#),
                "`chosen` does not end",
            ),
            (
                format!(r#"{{"chosen": [{q}, {a}], "rejected": [{b}]}}"#),
                "same conversation",
            ),
            (
                format!(
                    r#"{{"prompt": "q", "chosen": [{a}], "rejected": [{{"role": "assistant", "tool_calls": [{{"name": "f"}}]}}]}}"#
                ),
                "`rejected` ends with calls",
            ),
            (
                format!(
                    r#"{{"messages": [{q}, {q}], "chosen": [{q}, {a}], "rejected": [{q}, {b}]}}"#
                ),
                "not those of the prompt",
            ),
            (
                r#"{"chosen": 1, "rejected": "b"}"#.to_owned(),
                "invalid type: integer `1`, expected a text or a list of messages",
            ),
            (
                r#"{"chosen": [{"role": "king", "content": "a"}], "rejected": "b"}"#.to_owned(),
                "unknown variant `king`",
            ),
        ];
        for (line, expected) in wrong {
            let error = read(&line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
