//! What every command works with: the server, and where output goes.

use std::fmt::Display;
use std::future::Future;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::Serialize;
use tinkrs::{AdminClient, RestClient, ServiceClient};
use tokio::sync::Notify;

use crate::ctrl_c::CtrlC;
use crate::hint::explain;
use crate::output::{self, Aborted};
use crate::server_args::Target;
use crate::system;
use crate::table::Table;

/// How long the server may be silent before a note says so.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a command that only asks something is tried again: somebody waits for it.
const RETRY_TIME: Duration = Duration::from_secs(20);

/// How results are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
}

/// The options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// How results are shown: tables for people, JSON for programs
    #[arg(
        short,
        long,
        global = true,
        value_parser = ["table", "json"],
        default_value = "table",
        help_heading = "Output"
    )]
    // A text, because `export` has a `--format` of its own in this one's place.
    format: String,

    /// The same as `--format json`
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
}

/// What every command works with.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    format: Format,
    /// The command, as other processes are told.
    command: String,
    target: Target,
    lost: Arc<Lost>,
    /// How many parts of the command listen for Ctrl-C themselves.
    listening: Arc<AtomicUsize>,
}

/// A server that is gone while a command uses it.
#[derive(Debug, Default)]
struct Lost {
    error: Mutex<Option<anyhow::Error>>,
    notice: Notify,
}

/// A part of the command that listens for Ctrl-C itself, until this is dropped.
#[derive(Debug)]
pub(crate) struct Listening<'a>(&'a AtomicUsize);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Context {
    /// Makes what a command, such as `tinkrs train sft`, works with.
    pub(crate) fn new(args: &OutputArgs, command: String) -> Self {
        Self {
            format: if args.json || args.format == "json" {
                Format::Json
            } else {
                Format::Table
            },
            command,
            target: Target::Environment,
            lost: Arc::default(),
            listening: Arc::default(),
        }
    }

    /// Returns the same for a command that uses this server.
    pub(crate) fn on(&self, target: Target) -> Self {
        Self {
            target,
            ..self.clone()
        }
    }

    /// Returns the command, such as `tinkrs train sft`.
    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    /// Ends the command with an error once there is one.
    pub(crate) fn fail_when(&self, lost: impl Future<Output = anyhow::Error> + Send + 'static) {
        let shared = Arc::clone(&self.lost);
        tokio::spawn(async move {
            *lock(&shared.error) = Some(lost.await);
            shared.notice.notify_one();
        });
    }

    /// Completes when the server that the command uses has ended.
    async fn lost(&self) -> anyhow::Error {
        self.lost.notice.notified().await;
        let error = lock(&self.lost.error).take();
        error.unwrap_or_else(|| anyhow!("the server has ended"))
    }

    /// Whether the server is on this machine, in this process or another one.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.target, Target::Local(_))
    }

    /// Whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Whether progress is drawn: for a person who looks at a terminal.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.is_json() && std::io::stderr().is_terminal()
    }

    /// Returns a client of the server.
    ///
    /// It sends no reports: a command ends before there is anything worth reporting.
    pub(crate) fn service(&self) -> ServiceClient {
        self.target
            .client()
            .telemetry(false)
            .max_retry_time(RETRY_TIME)
            .build()
    }

    pub(crate) fn rest(&self) -> RestClient {
        self.service().create_rest_client()
    }

    pub(crate) fn admin(&self) -> AdminClient {
        self.service().create_admin_client()
    }

    /// Runs a command to its end. It listens for Ctrl-C itself.
    pub(crate) fn block_on_to_end(
        &self,
        command: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("could not start the threads that wait for the server")?;
        let result = runtime.block_on(async {
            tokio::select! {
                result = command => result,
                lost = self.lost() => Err(lost),
            }
        });
        runtime.shutdown_background();
        result
    }

    /// Leaves Ctrl-C to a part of the command, which has to end in an orderly way.
    pub(crate) fn listening_for_ctrl_c(&self) -> Listening<'_> {
        self.listening.fetch_add(1, Ordering::AcqRel);
        Listening(&self.listening)
    }

    /// Runs a command to its end, or until the user has enough of it.
    pub(crate) fn block_on(
        &self,
        command: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("could not start the threads that wait for the server")?;
        let result = runtime.block_on(async {
            // Before anything begins.
            let mut ctrl_c = CtrlC::listen()?;
            let mut command = std::pin::pin!(command);
            loop {
                tokio::select! {
                    biased;
                    () = ctrl_c.pressed() => {
                        // What the command has to clean up happens when it is dropped.
                        if self.listening.load(Ordering::Acquire) == 0 {
                            return Err(Aborted.into());
                        }
                    }
                    result = &mut command => return result,
                    lost = self.lost() => return Err(lost),
                }
            }
        });
        // A thread may still wait for a line on stdin.
        runtime.shutdown_background();
        result
    }

    /// Waits for the server. `action` completes the sentence "could not ...".
    pub(crate) async fn ask<T>(
        &self,
        action: &str,
        call: impl Future<Output = Result<T, tinkrs::Error>>,
    ) -> anyhow::Result<T> {
        let mut call = std::pin::pin!(call);
        let answer = tokio::select! {
            answer = &mut call => answer,
            () = tokio::time::sleep(SILENCE) => {
                let url = self.target.url();
                self.note(format_args!("waiting for {url}; Ctrl-C gives up"));
                call.await
            }
        };
        answer.map_err(|error| explain(error, format!("could not {action}")))
    }

    /// Tells the user something that is not a result.
    pub(crate) fn note(&self, text: impl Display) {
        output::note(text);
    }

    /// Prints a line of results.
    pub(crate) fn line(&self, text: impl Display) -> anyhow::Result<()> {
        output::say(text)
    }

    /// Prints a result: as JSON if that is asked for, else as a table.
    pub(crate) fn show(
        &self,
        value: &impl Serialize,
        table: impl FnOnce() -> Table,
    ) -> anyhow::Result<()> {
        if self.is_json() {
            return self.line(ascii(&serde_json::to_string_pretty(value)?));
        }
        output::print(&table().text(system::terminal_width()))
    }

    /// Confirms that something was done, in a sentence or as the object it was done to.
    pub(crate) fn done(&self, value: &impl Serialize, text: impl Display) -> anyhow::Result<()> {
        if self.is_json() {
            self.line(ascii(&serde_json::to_string_pretty(value)?))
        } else {
            self.line(text)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Escapes all but ASCII. In JSON it can only be part of a text.
pub(crate) fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_ascii_and_means_the_same() {
        let text = "Zoë 🦀 \"quoted\"";
        let json = ascii(&serde_json::to_string(text).unwrap());
        assert_eq!(json, r#""Zo\u00eb \ud83e\udd80 \"quoted\"""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
