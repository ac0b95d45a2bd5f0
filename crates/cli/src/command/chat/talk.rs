//! What is said in a conversation, and what a line may be besides words.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use tinkrs_chat::{Conversation, Message, Role};
use tinkrs_recipes::data::Record;

/// A line of the user.
#[derive(Debug, PartialEq)]
pub(super) enum Said<'a> {
    Nothing,
    Words(&'a str),
    Reset,
    /// Answer the last message anew.
    Regenerate,
    /// Take back the last message and its answer.
    Undo,
    System(Option<&'a str>),
    /// Change a setting, or show them all.
    Set(Option<(&'a str, &'a str)>),
    Save(&'a Path),
    Help,
    Exit,
    /// Something that looks like a command and is none.
    Unknown(String),
}

/// Reads a line. Two slashes begin words that begin with one.
pub(super) fn read(line: &str) -> Said<'_> {
    let line = line.trim();
    if line.is_empty() {
        return Said::Nothing;
    }
    let Some(command) = line.strip_prefix('/') else {
        return Said::Words(line);
    };
    if command.starts_with('/') {
        return Said::Words(command);
    }
    let (name, rest) = command
        .split_once(char::is_whitespace)
        .unwrap_or((command, ""));
    let rest = rest.trim();
    let argument = (!rest.is_empty()).then_some(rest);
    match (name, argument) {
        ("reset", None) => Said::Reset,
        ("regenerate" | "retry", None) => Said::Regenerate,
        ("undo", None) => Said::Undo,
        ("help" | "?", None) => Said::Help,
        ("exit" | "quit" | "bye", None) => Said::Exit,
        ("set", None) => Said::Set(None),
        ("set", Some(setting)) => match setting.split_once([' ', '=', '\t']) {
            Some((name, value)) => Said::Set(Some((name, value.trim_matches([' ', '=', '\t'])))),
            None => Said::Unknown(format!("/set {setting} needs a value")),
        },
        ("system", text) => Said::System(text),
        ("save", Some(file)) => Said::Save(Path::new(file)),
        ("save", None) => Said::Unknown("/save needs the name of a file".to_owned()),
        ("reset" | "regenerate" | "retry" | "undo" | "help" | "exit" | "quit", Some(_)) => {
            Said::Unknown(format!("/{name} stands alone"))
        }
        _ => Said::Unknown(format!(
            "there is no command /{name}; /help shows them, and `//` begins a line that starts with `/`"
        )),
    }
}

/// A conversation.
#[derive(Debug)]
pub(super) struct Talk {
    system: Option<String>,
    pub(super) messages: Vec<Message>,
}

impl Talk {
    pub(super) fn new(system: Option<String>) -> Self {
        let mut talk = Self {
            system,
            messages: Vec::new(),
        };
        talk.reset();
        talk
    }

    /// Forgets all but the system message.
    pub(super) fn reset(&mut self) {
        self.messages = self.system.iter().map(Message::system).collect();
    }

    /// Takes back the last answer; returns whether there was one.
    pub(super) fn take_back_answer(&mut self) -> bool {
        let is_answer = |message: &Message| message.role == Role::Assistant;
        let has_answer = self.messages.last().is_some_and(is_answer);
        if has_answer {
            self.messages.pop();
        }
        has_answer
    }

    /// Adds the conversation to a file of chats.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        ensure!(
            self.messages.len() > usize::from(self.system.is_some()),
            "nothing was said yet"
        );
        let record = Record::Chat(Conversation::from(self.messages.clone()));
        let line = serde_json::to_string(&record)?;
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path);
        file.and_then(|mut file| writeln!(file, "{line}"))
            .with_context(|| format!("could not write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_words_or_a_command() {
        let cases = [
            ("  \n", Said::Nothing),
            (" hello /reset\n", Said::Words("hello /reset")),
            ("//etc/passwd", Said::Words("/etc/passwd")),
            ("/reset", Said::Reset),
            ("/system  be kind \n", Said::System(Some("be kind"))),
            ("/system", Said::System(None)),
            (
                "/save my chats.jsonl",
                Said::Save(Path::new("my chats.jsonl")),
            ),
            ("/help", Said::Help),
            ("/regenerate", Said::Regenerate),
            ("/undo", Said::Undo),
            ("/quit", Said::Exit),
            ("/set", Said::Set(None)),
            ("/set top-p 0.9", Said::Set(Some(("top-p", "0.9")))),
            ("/set seed = 4", Said::Set(Some(("seed", "4")))),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), expected, "{line}");
        }
        for line in ["/save", "/reset now", "/nonsense", "/", "/set seed"] {
            assert!(matches!(read(line), Said::Unknown(_)), "{line}");
        }
    }

    #[test]
    fn a_saved_conversation_can_be_trained_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chats.jsonl");
        let mut talk = Talk::new(Some("be brief".to_owned()));
        assert!(talk.save(&file).is_err(), "nothing was said");
        talk.messages.push(Message::user("hi"));
        talk.messages.push(Message::assistant("hello"));
        talk.save(&file).unwrap();
        talk.reset();
        assert_eq!(talk.messages, [Message::system("be brief")]);
        talk.messages.push(Message::user("again"));
        talk.save(&file).unwrap();
        assert_eq!(Record::read(&file).unwrap().len(), 2);
    }
}
