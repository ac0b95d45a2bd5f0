//! Preferences: two answers to the same question, one better than the other.

use crate::Error;
use crate::data::{Record, read_jsonl};
use crate::renderer::{Conversation, Example, Message, Renderer, TrainOn};
use serde::{Deserialize, Serialize};
use std::path::Path;

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
