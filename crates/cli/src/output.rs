//! What is written to stdout and stderr: results, notes, and failures with every cause and the next thing
//! to try.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{IsTerminal, Write};

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

/// Shows an error on stderr.
pub(crate) fn error(error: &anyhow::Error) {
    // Nothing is left to do if stderr is gone.
    let _ = std::io::stderr().write_all(harmless(&text(error)).as_bytes());
}

/// Returns whether the error is that the reader of our output has closed it.
///
/// Only writing output fails with a bare I/O error; all others have a context.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Replaces what a terminal would act on, since others wrote some of what we show: servers, models.
pub(crate) fn harmless(text: &str) -> String {
    let shown = |c: char| {
        if c.is_control() && c != '\n' && c != '\t' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(shown).collect()
}

/// Shows something that is not a result, on stderr.
pub(crate) fn note(text: impl Display) {
    // Nothing is left to do if stderr is gone.
    let _ = writeln!(std::io::stderr(), "{}", harmless(&text.to_string()));
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

fn text(error: &anyhow::Error) -> String {
    let hint = error.downcast_ref::<Hint>();
    let mut messages = error.chain().skip(usize::from(hint.is_some()));
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
