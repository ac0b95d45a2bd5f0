//! Preferences: two answers to the same question, one better than the other.

use crate::Error;
use crate::data::{Record, TooLong, read_jsonl, read_numbered};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs_chat::{Conversation, Example, Message, Renderer, TrainOn};

/// One line of a preference file: a conversation or a prompt, and two answers.
///
/// `{"messages": […], "chosen": "…", "rejected": "…"}`, or the same with a `prompt` of plain text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

impl Pair {
    /// Reads and renders the preferences of a file. Returns the pairs, and how many were left out
    /// for the length of an answer.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is no preference, cannot be rendered, or is too long
    /// and that is refused; the error names the line.
    pub fn read(
        path: impl AsRef<Path>,
        renderer: &Renderer,
        max_tokens: usize,
        too_long: TooLong,
    ) -> Result<(Vec<Self>, usize), Error> {
        let path = path.as_ref();
        let preferences = read_numbered::<Preference>(path)?;
        let count = preferences.len();
        let mut pairs = Vec::with_capacity(count);
        for (line, preference) in preferences {
            let pair = preference
                .pair(renderer)
                .and_then(|pair| pair.within(max_tokens, too_long))
                .map_err(|error| error.in_line(path, line))?;
            pairs.extend(pair);
        }
        let left_out = count - pairs.len();
        Ok((pairs, left_out))
    }

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
