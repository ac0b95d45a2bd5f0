//! What every command works with: the server, and where output goes.

use std::fmt::Display;
use std::future::Future;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use serde::Serialize;
use tinkrs::{AdminClient, RestClient, ServiceClient};

use crate::hint::explain;
use crate::output;
use crate::system;
use crate::table::Table;

/// How long the server may be silent before a note says so.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a command that only asks something is tried again: somebody waits for it.
const RETRY_TIME: Duration = Duration::from_secs(20);

/// How results are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
        value_enum,
        default_value = "table",
        help_heading = "Output"
    )]
    format: Format,

    /// The same as `--format json`
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
}

/// What every command works with.
#[derive(Debug)]
pub(crate) struct Context {
    format: Format,
}

impl Context {
    pub(crate) fn new(args: &OutputArgs) -> Self {
        Self {
            format: if args.json { Format::Json } else { args.format },
        }
    }

    /// Whether results are JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Whether progress is drawn: for a person who looks at a terminal.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.is_json() && std::io::stderr().is_terminal()
    }

    /// Returns a client with the settings of the environment.
    ///
    /// It sends no reports: a command ends before there is anything worth reporting.
    pub(crate) fn service(&self) -> ServiceClient {
        ServiceClient::builder()
            .telemetry(false)
            .max_retry_time(RETRY_TIME)
            .on_retry(output::retry_notes())
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
        let result = runtime.block_on(command);
        runtime.shutdown_background();
        result
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
            tokio::select! {
                // Ctrl-C is listened for before anything begins.
                biased;
                // What the command has to clean up happens when it is dropped.
                Ok(()) = tokio::signal::ctrl_c() => Err(anyhow!("aborted")),
                result = command => result,
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
            () = tokio::time::sleep(PATIENCE) => {
                let url = tinkrs::server_url::from_env();
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
