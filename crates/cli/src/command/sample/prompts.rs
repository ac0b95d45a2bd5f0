//! What is asked, and where it comes from.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tinkrs_recipes::renderer::{Conversation, Json, Message, Role};

/// Something to ask.
#[derive(Clone, Debug, PartialEq)]
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
            (None, Some(path)) => {
                let bytes = std::fs::read(path);
                let bytes = bytes.with_context(|| format!("could not read {}", path.display()))?;
                let text =
                    text(bytes).with_context(|| format!("{} is not text", path.display()))?;
                if path.extension().is_some_and(|end| end == "jsonl") {
                    return lines(&text, path).map(Self::Many);
                }
                text
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

fn lines(text: &str, path: &Path) -> anyhow::Result<Vec<(usize, Ask)>> {
    // Some editors begin a file with a mark of its encoding, which is not part of the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let asks = lines.map(|(index, line)| {
        let number = index + 1;
        let ask = ask(line).with_context(|| format!("{}, line {number}", path.display()))?;
        Ok((number, ask))
    });
    let asks = asks.collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!asks.is_empty(), "{} has no prompts", path.display());
    Ok(asks)
}

fn ask(line: &str) -> anyhow::Result<Ask> {
    let line: Line = serde_json::from_str(line)?;
    match (line.prompt, line.messages) {
        (Some(prompt), None) => {
            ensure!(!prompt.trim().is_empty(), "the prompt is empty");
            Ok(Ask::Text(prompt))
        }
        (None, Some(messages)) => {
            let last = messages.last().map(|message| message.role);
            ensure!(last.is_some(), "there are no messages");
            ensure!(
                last != Some(Role::Assistant),
                "the last message is the assistant's, and leaves nothing to answer"
            );
            Ok(Ask::Chat(Conversation {
                messages,
                tools: line.tools,
            }))
        }
        (None, None) => bail!("there are neither `messages` nor a `prompt`"),
        (Some(_), Some(_)) => bail!("there are both `messages` and a `prompt`"),
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
        let text =
            "\u{feff}{\"prompt\": \"a\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n";
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
