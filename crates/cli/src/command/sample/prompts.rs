//! What is asked, and where it comes from.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tinkrs_chat::{Conversation, Json, Message, Role};
use tinkrs_recipes::data::read_numbered;

/// Something to ask.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Line")]
pub(super) enum Ask {
    Text(String),
    Chat(Conversation),
}

/// One prompt, or those of a file with the numbers of their lines.
#[derive(Debug, PartialEq)]
pub(super) enum Source {
    One(String),
    Many(Vec<(usize, Ask)>),
}

impl Source {
    /// Reads the prompt that was given: itself, stdin for `-`, or a file.
    pub(super) fn read(prompt: Option<&str>, file: Option<&Path>) -> anyhow::Result<Self> {
        let text = match (prompt, file) {
            (Some("-"), _) => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_to_end(&mut bytes);
                read.context("could not read stdin")?;
                text(bytes).context("stdin is not text")?
            }
            (Some(prompt), _) => prompt.to_owned(),
            (None, Some(path)) if path.extension().is_some_and(|end| end == "jsonl") => {
                let asks = read_numbered(path)?;
                ensure!(!asks.is_empty(), "{} has no prompts", path.display());
                let asks = asks.into_iter();
                let asks = asks.map(|(place, ask)| (place.number(), ask));
                return Ok(Self::Many(asks.collect()));
            }
            (None, Some(path)) => {
                let bytes = std::fs::read(path);
                let bytes = bytes.with_context(|| format!("could not read {}", path.display()))?;
                text(bytes).with_context(|| format!("{} is not text", path.display()))?
            }
            (None, None) => bail!("there is nothing to ask"),
        };
        let text = text.trim_end_matches(['\n', '\r']);
        ensure!(!text.trim().is_empty(), "the prompt is empty");
        Ok(Self::One(text.to_owned()))
    }
}

fn text(bytes: Vec<u8>) -> anyhow::Result<String> {
    Ok(String::from_utf8(bytes)?)
}

#[derive(Deserialize)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    #[serde(default)]
    tools: Vec<Json>,
}

impl TryFrom<Line> for Ask {
    type Error = &'static str;

    fn try_from(line: Line) -> Result<Self, Self::Error> {
        match (line.prompt, line.messages) {
            (Some(prompt), None) if prompt.trim().is_empty() => Err("the prompt is empty"),
            (Some(prompt), None) => Ok(Self::Text(prompt)),
            (None, Some(messages)) => match messages.last().map(|message| message.role) {
                None => Err("there are no messages"),
                Some(Role::Assistant) => {
                    Err("the last message is the assistant's, and leaves nothing to answer")
                }
                Some(_) => Ok(Self::Chat(Conversation {
                    messages,
                    tools: line.tools,
                })),
            },
            (None, None) => Err("there are neither `messages` nor a `prompt`"),
            (Some(_), Some(_)) => Err("there are both `messages` and a `prompt`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_lines_has_a_prompt_on_each() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            Source::read(None, Some(&path))
        };
        let text = "\u{feff}{\"prompt\": \"a\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n";
        let chat = Ask::Chat(Conversation::from([Message::user("b")]));
        assert_eq!(
            read("x.jsonl", text).unwrap(),
            Source::Many(vec![(1, Ask::Text("a".to_owned())), (3, chat)])
        );
        let whole = Source::One("{\"prompt\": \"a\"}".to_owned());
        assert_eq!(read("x.txt", "{\"prompt\": \"a\"}\n").unwrap(), whole);
        let wrong = [
            ("{}", "neither `messages` nor a `prompt`"),
            ("{", "line 1"),
            ("{\"prompt\": \" \"}", "the prompt is empty"),
            ("{\"messages\": []}", "no messages"),
            (
                "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}",
                "nothing to answer",
            ),
            ("\n", "has no prompts"),
        ];
        for (line, problem) in wrong {
            let error = read("wrong.jsonl", line).unwrap_err();
            assert!(format!("{error:#}").contains(problem), "{line}: {error:#}");
        }
        assert!(read("empty.txt", "\n").is_err());
    }
}
