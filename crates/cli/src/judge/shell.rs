//! A program of the user's, in a shell, with its pipes.

use std::process::Stdio;
use std::sync::Mutex;

use anyhow::Context as _;
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};

use super::group::Group;

/// How much of the program's complaints is kept: the end, in bytes.
const EXCERPT: usize = 2000;

/// A program that runs, and its pipes.
pub(crate) struct Shell {
    pub(crate) group: Group,
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

impl Shell {
    /// Starts a program in a shell.
    pub(crate) fn start(command: &str) -> anyhow::Result<Self> {
        let (shell, flag) = if cfg!(windows) {
            ("cmd", "/C")
        } else {
            ("sh", "-c")
        };
        let mut program = Command::new(shell);
        program
            .args([flag, command])
            // Python keeps its output to itself for a while otherwise.
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut group =
            Group::spawn(&mut program).with_context(|| format!("could not start `{command}`"))?;
        let missing = || anyhow::anyhow!("`{command}` has no pipes");
        Ok(Self {
            stdin: group.leader.stdin.take().with_context(missing)?,
            stdout: group.leader.stdout.take().with_context(missing)?,
            stderr: group.leader.stderr.take().with_context(missing)?,
            group,
        })
    }
}

/// Keeps the end of what the program complains about.
pub(crate) async fn listen(mut stderr: ChildStderr, complaints: impl AsRef<Mutex<Vec<u8>>>) {
    let mut part = [0; 1024];
    while let Ok(length @ 1..) = stderr.read(&mut part).await {
        let mut kept = complaints
            .as_ref()
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        kept.extend_from_slice(&part[..length]);
        let surplus = kept.len().saturating_sub(EXCERPT);
        kept.drain(..surplus);
    }
}

pub(crate) fn excerpt(complaints: &Mutex<Vec<u8>>) -> String {
    let kept = complaints
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let text = String::from_utf8_lossy(&kept);
    match text.trim() {
        "" => String::new(),
        text => format!("\nits stderr:\n{text}"),
    }
}

pub(crate) fn short(line: &str) -> String {
    match line.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
