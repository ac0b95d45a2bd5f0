//! Options that several recipes have, besides the settings of the recipes themselves.

use std::path::PathBuf;

use anyhow::{anyhow, ensure};
use serde::{Deserialize, Serialize};
use tinkrs_recipes::data::TooLong;

use crate::backend::BackendArgs;
use crate::output::Hint;

/// Where a run reads and writes
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) backend: BackendArgs,

    /// JSONL file to learn from: one JSON object a line. Required, here or in `--config`
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    data: Option<PathBuf>,

    /// Folder for the run: settings, journal, metrics, samples and report. Required, here or in `--config`
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    run_dir: Option<PathBuf>,

    /// TOML file of settings: every option here is a key, with `_` for `-`
    ///
    /// What is typed comes before what the file says. Paths are relative to the folder in which the
    /// command is run. `yes` is not a key.
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    #[serde(skip)]
    config: Option<PathBuf>,

    /// Ask the model this before and after training, for the report; may be repeated
    #[arg(long, value_name = "TEXT", help_heading = "Run")]
    pub(super) ask: Vec<String>,

    /// Do not ask before training on the hosted service, which charges for it
    #[arg(long, help_heading = "Run")]
    #[serde(skip)]
    pub(super) yes: bool,
}

impl RunArgs {
    /// Returns the file of data, which must be given somewhere.
    pub(super) fn data(&self) -> anyhow::Result<&PathBuf> {
        self.data.as_ref().ok_or_else(|| {
            anyhow!("no data file").context(Hint(
                "name it with `--data FILE`, or with the key `data` of the `--config` file",
            ))
        })
    }

    /// Returns the folder of the run, which must be given somewhere.
    pub(super) fn run_dir(&self) -> anyhow::Result<&PathBuf> {
        self.run_dir.as_ref().ok_or_else(|| {
            anyhow!("no folder for the run").context(Hint(
                "name one with `--run-dir DIR`, or with the key `run_dir` of the `--config` file",
            ))
        })
    }
}

/// How long examples may be
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(super) struct LengthArgs {
    /// Longest example, in tokens
    #[arg(long, value_name = "N")]
    pub(super) max_tokens: usize,

    /// What to do with longer examples
    #[arg(long, value_name = "HOW", value_enum)]
    pub(super) too_long: TooLong,
}

impl Default for LengthArgs {
    fn default() -> Self {
        Self {
            max_tokens: 1024,
            too_long: TooLong::Skip,
        }
    }
}

/// How long answers may be
#[derive(Clone, Copy, Debug, clap::Args, Serialize, Deserialize)]
pub(super) struct AnswerArgs {
    /// Most tokens of an answer
    #[arg(long, value_name = "N")]
    max_tokens: u32,
}

impl Default for AnswerArgs {
    fn default() -> Self {
        Self { max_tokens: 128 }
    }
}

impl AnswerArgs {
    pub(super) fn max_tokens(self) -> anyhow::Result<u32> {
        ensure!(self.max_tokens > 0, "max_tokens: 0, expected 1 or more");
        Ok(self.max_tokens)
    }
}
