//! Credentials that a command prints.

use super::{AuthError, Secret};
use std::fmt;
use std::process::Stdio;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use zeroize::Zeroizing;

/// More than any credential needs. A command that prints more is not printing a credential.
const MAX_OUTPUT_BYTES: u64 = 64 * 1024;

/// A shell command whose output is a credential, as in `TINKER_CREDENTIAL_CMD`.
///
/// The command may hold secrets itself, so `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialCommand(Zeroizing<String>);

impl CredentialCommand {
    /// Whether there is no command in it, which counts as none configured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs the command and returns what it prints, without the space around it.
    ///
    /// What it writes to its error output and how it exits does not matter. Dropping the future
    /// kills the command.
    ///
    /// # Errors
    /// If the shell cannot be run, or if what it prints is empty, is not UTF-8, or goes on for
    /// more than 64 KiB.
    pub async fn run(&self) -> Result<Secret, AuthError> {
        let mut child = shell(&self.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(AuthError::CommandNotRun)?;
        let stdout = child.stdout.take().expect("standard output is piped");

        // Its whole size from the start, so that growing leaves no copies behind.
        let mut output = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT_BYTES as usize + 1));
        stdout
            .take(MAX_OUTPUT_BYTES + 1)
            .read_to_end(&mut output)
            .await
            .map_err(AuthError::CommandNotRun)?;
        if output.len() as u64 > MAX_OUTPUT_BYTES {
            return Err(AuthError::CommandOutput("more than a credential"));
        }
        child.wait().await.map_err(AuthError::CommandNotRun)?;

        match std::str::from_utf8(&output).map(str::trim) {
            Ok("") => Err(AuthError::CommandOutput("nothing")),
            Ok(credential) => Ok(Secret::from(credential)),
            Err(_) => Err(AuthError::CommandOutput("something that is not UTF-8")),
        }
    }
}

impl From<String> for CredentialCommand {
    fn from(command: String) -> Self {
        Self(Zeroizing::new(command))
    }
}

impl From<&str> for CredentialCommand {
    fn from(command: &str) -> Self {
        Self::from(command.to_owned())
    }
}

impl fmt::Debug for CredentialCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialCommand(..)")
    }
}

#[cfg(not(windows))]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    shell
}

#[cfg(windows)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    // `cmd` does not parse quotes as other programs do: it wants the command as it is.
    shell.arg("/C").raw_arg(command);
    shell
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_output_is_the_credential_whatever_the_errors_and_the_status() {
        let command = CredentialCommand::from("echo '  tml-1234 '; echo oops >&2; exit 3");
        assert_eq!(command.run().await.unwrap(), Secret::from("tml-1234"));
    }

    #[tokio::test]
    async fn the_command_runs_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        let command = format!("echo x >> '{0}'; wc -l < '{0}'", file.display());
        let command = CredentialCommand::from(command);
        assert_eq!(command.run().await.unwrap(), Secret::from("1"));
        assert_eq!(command.run().await.unwrap(), Secret::from("2"));
    }

    #[tokio::test]
    async fn output_that_is_no_credential_is_an_error_that_shows_nothing() {
        let cases = [
            ("true", "printed nothing"),
            ("echo hidden >&2", "printed nothing"),
            ("echo '   '", "printed nothing"),
            ("not-a-command-hidden", "printed nothing"),
            (r"printf 'hidden\377'", "not UTF-8"),
            ("yes hidden", "more than a credential"),
        ];
        for (command, expected) in cases {
            let command = CredentialCommand::from(command);
            let error = command.run().await.unwrap_err();
            let shown = format!("{error} {error:?} {command:?}");
            assert!(shown.contains(expected), "{shown}");
            assert!(!shown.contains("hidden"), "{shown}");
        }
    }
}
