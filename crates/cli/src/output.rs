//! What is written to stdout and stderr: results, notes, and failures with every cause and the next thing
//! to try.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{IsTerminal, Write};

use tinkrs::auth::AuthError;

use crate::terminal_line;

/// The next thing to try, attached to an error as its outermost context.
#[derive(Debug)]
pub(crate) struct Hint(pub(crate) &'static str);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// What is left to say when the user stopped a command: not a failure, and not a success.
#[derive(Debug)]
pub(crate) struct Stopped(pub(crate) String);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Stopped {}

/// The user has ended a command that has nothing to save.
#[derive(Debug)]
pub(crate) struct Aborted;

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("aborted")
    }
}

impl std::error::Error for Aborted {}

/// Shows an error on stderr.
pub(crate) fn error(error: &anyhow::Error) {
    terminal_line::write_above(&harmless(&text(error)));
}

/// Returns whether the error is that the reader of our output has closed it.
///
/// Only writing output fails with a bare I/O error; all others have a context.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Returns whether a terminal acts on a character instead of showing it: control characters, and those that
/// change the direction of the text around them, so that it reads as something else.
pub(crate) fn controls_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}')
}

/// Replaces what a terminal would act on, since others wrote some of what we show: servers, models.
pub(crate) fn harmless(text: &str) -> String {
    let shown = |c: char| {
        if controls_terminal(c) && c != '\n' && c != '\t' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(shown).collect()
}

/// Stderr for lines of JSON, in which such characters are written as escapes: they can only be in a text.
#[derive(Debug)]
pub(crate) struct JsonLines;

impl Write for JsonLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = escaped(&String::from_utf8_lossy(bytes));
        std::io::stderr().write_all(line.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Stderr for lines of the log, which go above a progress bar.
#[derive(Debug)]
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        terminal_line::write_above(&harmless(&String::from_utf8_lossy(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if controls_terminal(c) && c != '\n' {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// Shows something that is not a result, on stderr.
pub(crate) fn note(text: impl Display) {
    terminal_line::write_above(&(harmless(&text.to_string()) + "\n"));
}

/// Shows a result, on stdout.
pub(crate) fn say(text: impl Display) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Shows a part of a result, on stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    let text = as_shown(text, stdout.is_terminal());
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Files and other programs get a result as it is.
fn as_shown(text: &str, on_terminal: bool) -> Cow<'_, str> {
    if on_terminal {
        harmless(text).into()
    } else {
        text.into()
    }
}

/// Returns an error with its causes, without the hint.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let messages: Vec<_> = messages(error).collect();
    messages.join(": ")
}

fn messages(error: &anyhow::Error) -> impl Iterator<Item = String> {
    let hint = error.downcast_ref::<Hint>();
    let causes = error.chain().skip(usize::from(hint.is_some()));
    causes.map(|cause| match cause.downcast_ref::<AuthError>() {
        // Programs are told of another way, which a command line does not have.
        Some(AuthError::Missing) => "no API key is set or stored".to_owned(),
        _ => cause.to_string(),
    })
}

fn text(error: &anyhow::Error) -> String {
    let hint = error.downcast_ref::<Hint>();
    let mut messages = messages(error);
    let mut text = String::new();
    if let Some(first) = messages.next() {
        text.push_str(&format!("error: {first}\n"));
    }
    for cause in messages {
        text.push_str(&format!("  caused by: {cause}\n"));
    }
    if let Some(hint) = hint {
        text.push_str(&format!("\nhint: {hint}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_message_cannot_control_the_terminal() {
        let text = "a\n\u{1b}[2Jb";
        assert_eq!(as_shown(text, true), "a\n\u{fffd}[2Jb");
        assert_eq!(as_shown(text, false), text);
        // Those for text that runs from right to left: every one, and nothing that is only shown.
        for c in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert!(controls_terminal(c), "{c:?}");
        }
        for c in ['\u{61c}', '\u{200e}', '\u{200f}', '\u{9b}', '\u{7f}'] {
            assert!(controls_terminal(c), "{c:?}");
        }
        for c in "aé שלום 🧑\u{200d}🚀".chars() {
            assert!(!controls_terminal(c), "{c:?}");
        }
    }

    #[test]
    fn a_line_of_json_means_the_same_without_what_controls_the_terminal() {
        let text = "run \u{202e}gnp\u{7f}\u{9b}2J";
        let line = serde_json::to_string(text).unwrap();
        let shown = escaped(&format!("{line}\n"));
        assert!(!shown.trim_end().chars().any(controls_terminal), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }

    #[test]
    fn a_failure_shows_its_causes_and_then_the_hint() {
        let error = anyhow!("connection refused").context("could not list checkpoints");
        assert_eq!(
            text(&error),
            "error: could not list checkpoints\n  caused by: connection refused\n"
        );
        assert_eq!(
            text(&error.context(Hint("start a server"))),
            "error: could not list checkpoints\n  caused by: connection refused\n\n\
             hint: start a server\n"
        );
    }
}
