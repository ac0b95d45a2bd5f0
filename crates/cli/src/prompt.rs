//! Questions to the user.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::{Context, anyhow, bail};
use tinkrs::auth::Secret;

use crate::system::QuietTerminal;

/// Asks a question that is answered by yes or no. No answer is no.
pub(crate) async fn confirm(question: &str) -> anyhow::Result<bool> {
    ask(&format!("{question} [y/N]: "))?;
    // Waiting for a line must not keep Ctrl-C from being noticed.
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = line.await?.context("could not read the answer")?;
    if line.is_empty() {
        bail!("aborted: there is no answer to read");
    }
    Ok(is_yes(&line))
}

/// Asks for a key, showing a `*` for each character.
pub(crate) async fn secret(question: &str) -> anyhow::Result<Secret> {
    ask(question)?;
    tokio::task::spawn_blocking(read_secret).await?
}

fn ask(question: &str) -> anyhow::Result<()> {
    let mut stderr = std::io::stderr();
    write!(stderr, "{question}")?;
    stderr.flush()?;
    Ok(())
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

fn read_secret() -> anyhow::Result<Secret> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let mut line = String::new();
        stdin
            .lock()
            .read_line(&mut line)
            .context("could not read the key")?;
        return Ok(Secret::from(line.trim()));
    }
    let quiet = QuietTerminal::new().context("could not hide the key")?;
    let mut entry = Entry::default();
    for byte in stdin.lock().bytes() {
        match entry.take(byte.context("could not read the key")?) {
            Step::Show(text) => ask(text)?,
            Step::Done => break,
            Step::Abort => {
                drop(quiet);
                ask("\n")?;
                return Err(anyhow!("aborted"));
            }
        }
    }
    ask("\n")?;
    Ok(Secret::from(String::from_utf8_lossy(&entry.bytes).trim()))
}

/// What was typed so far.
#[derive(Debug, Default)]
struct Entry {
    bytes: Vec<u8>,
    escape: Escape,
}

/// Whether an arrow or another key that sends several bytes is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Escape {
    #[default]
    None,
    Begun,
    Inside,
}

#[derive(Debug, PartialEq)]
enum Step {
    Show(&'static str),
    Done,
    Abort,
}

impl Entry {
    fn take(&mut self, byte: u8) -> Step {
        match (self.escape, byte) {
            (Escape::Begun, b'[' | b'O') => self.escape = Escape::Inside,
            (Escape::Begun, _) => self.escape = Escape::None,
            (Escape::Inside, b'@'..=b'~') => self.escape = Escape::None,
            (Escape::Inside, _) => {}
            (Escape::None, 0x1b) => self.escape = Escape::Begun,
            (Escape::None, b'\r' | b'\n') => return Step::Done,
            (Escape::None, 0x03 | 0x04) => return Step::Abort,
            (Escape::None, 0x08 | 0x7f) => {
                return Step::Show(self.bytes.pop().map_or("", |_| "\x08 \x08"));
            }
            (Escape::None, byte) if byte.is_ascii_control() => {}
            (Escape::None, byte) => {
                self.bytes.push(byte);
                return Step::Show("*");
            }
        }
        Step::Show("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in [("y\n", true), ("YES", true), ("\n", false), ("no", false)] {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn a_key_is_typed_with_corrections_and_arrows() {
        let mut entry = Entry::default();
        for byte in b"tmx\x7fl-\x1b[A\x1bOBa\x1b[3~" {
            entry.take(*byte);
        }
        assert_eq!(entry.bytes, b"tml-a");
        assert_eq!(entry.take(b'\r'), Step::Done);
        assert_eq!(entry.take(0x03), Step::Abort);
        assert_eq!(Entry::default().take(0x7f), Step::Show(""));
    }
}
