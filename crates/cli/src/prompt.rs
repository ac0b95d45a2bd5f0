//! Questions to the user.

use std::io::{BufRead, ErrorKind, IsTerminal, Write};

use anyhow::{Context, bail};
use rpassword::{Config, ConfigBuilder, read_password_with_config};
use tinkrs::auth::Secret;

use crate::output::harmless;

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
        bail!("aborted: no answer");
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
    write!(stderr, "{}", harmless(question))?;
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
    read_hidden(ConfigBuilder::new().password_feedback_mask('*').build())
}

fn read_hidden(config: Config) -> anyhow::Result<Secret> {
    match read_password_with_config(config) {
        Ok(key) => Ok(Secret::from(key.trim())),
        // Ctrl-C and Ctrl-D.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Interrupted | ErrorKind::UnexpectedEof
            ) =>
        {
            bail!("aborted")
        }
        Err(error) => Err(error).context("could not read the key"),
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
        let read = |typed: &[u8]| {
            let config = ConfigBuilder::new().input_data(typed).output_discard();
            read_hidden(config.build())
        };
        let key = read(b"tmx\x7fl-\x1b[A\x1bOBa\x1b[3~\rmore").unwrap();
        assert_eq!(key.expose(), "tml-a");
        assert_eq!(read(b"\x7f a \n").unwrap().expose(), "a");
        assert_eq!(read(b"\x04").unwrap_err().to_string(), "aborted");
    }
}
