//! Options that several recipes have, besides the settings of the recipes themselves.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tinkrs_recipes::data::{DataFormat, Place, Source, TooLong, parse_rows};

use crate::backend::BackendArgs;
use crate::cost::CostArgs;
use crate::loggers::LogArgs;
use crate::output::{Hint, note};

/// Where a run reads and writes
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) backend: BackendArgs,

    /// Name of the run, by which it is found later: `tinkrs chat --checkpoint NAME`. One is made up unless given
    #[arg(long, value_name = "NAME", help_heading = "Run")]
    pub(super) name: Option<String>,

    /// File or folder to learn from: JSON lines, a JSON array, CSV, TSV, text, Parquet, Arrow, or a Hugging Face
    /// dataset. May be repeated, for `train sft` also with weights such as `a.jsonl:0.7`. Required, here or in
    /// `--config`
    #[arg(long, value_name = "FILE[:WEIGHT]", help_heading = "Run")]
    data: Vec<Source>,

    /// What the data are, if that is not found out right: jsonl, json, csv, tsv, text, parquet or arrow, and which
    /// members count: messages, alpaca, pairs, preferences or plain. `parquet,messages` says both
    #[arg(long, value_name = "FORMAT", help_heading = "Run")]
    data_format: Option<DataFormat>,

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

    /// Start from a checkpoint, with its model and rank: tinker://…, `my-run`, `my-run@120`, or the folder of a
    /// run, which means its last checkpoint; from the folder of an adapter that `peft` wrote; or from that of a
    /// whole model, such as `tinkrs export --format merged` writes
    #[arg(long, value_name = "CHECKPOINT|FOLDER", help_heading = "Run")]
    pub(super) from: Option<String>,

    /// Continue with the optimizer of that checkpoint, too. Otherwise it starts afresh, as the learning rate does
    #[arg(long, help_heading = "Run")]
    pub(super) from_optimizer: bool,

    /// Ask the model this before and after training, for the report; may be repeated
    #[arg(long, value_name = "TEXT", help_heading = "Run")]
    pub(super) ask: Vec<String>,

    #[command(flatten)]
    #[serde(flatten)]
    pub(super) log: LogArgs,

    #[command(flatten)]
    #[serde(flatten)]
    pub(super) cost: CostArgs,

    /// Do not ask before training on the hosted service, which charges for it
    #[arg(long, help_heading = "Run")]
    #[serde(skip)]
    pub(super) yes: bool,
}

impl RunArgs {
    /// Returns the files of data, of which one must be given somewhere.
    pub(super) fn data(&self) -> anyhow::Result<Vec<Source>> {
        if self.data.is_empty() {
            return Err(anyhow!("no data file").context(Hint(
                "name it with `--data FILE`, or with the key `data` of the `--config` file",
            )));
        }
        Ok(self.as_said(self.data.iter().cloned()))
    }

    /// Returns the files of data of a recipe that takes all of them as they are.
    pub(super) fn data_without_weights(&self) -> anyhow::Result<Vec<Source>> {
        let sources = self.data()?;
        if let Some(source) = sources.iter().find(|source| source.weight.is_some()) {
            bail!(
                "data: `{source}` has a weight, which only `train sft`, `dpo` and `reward` go by"
            );
        }
        Ok(sources)
    }

    /// Gives files the format that is said.
    pub(super) fn as_said(&self, sources: impl IntoIterator<Item = Source>) -> Vec<Source> {
        let format = self.data_format.unwrap_or_default();
        let sources = sources.into_iter();
        sources.map(|source| Source { format, ..source }).collect()
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

/// Refuses a file that cannot be read. What is no file is refused where it is opened: a pipe would be waited for here.
pub(super) fn readable(path: &Path) -> anyhow::Result<()> {
    let read = || format!("could not read {}", path.display());
    if std::fs::metadata(path).with_context(read)?.is_file() {
        std::fs::File::open(path).with_context(read)?;
    }
    Ok(())
}

/// Opens each file of data, and says what it is.
pub(super) fn announce(sources: &[Source]) -> anyhow::Result<()> {
    for source in sources {
        note(format_args!(
            "{}: {}",
            source.path.display(),
            source.rows()?
        ));
    }
    Ok(())
}

/// Reads the rows of several files, each with its place.
pub(super) fn read_rows<T: DeserializeOwned>(
    sources: &[Source],
) -> anyhow::Result<Vec<(Place, T)>> {
    let mut rows = Vec::new();
    for source in sources {
        rows.extend(parse_rows(source.rows()?)?);
    }
    Ok(rows)
}

/// Names files in a message.
pub(super) fn names(sources: &[Source]) -> String {
    let names = sources
        .iter()
        .map(|source| source.path.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// What a run is evaluated with
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(super) struct EvalArgs {
    /// File to evaluate with, like that of `--data`; it is never trained on
    #[arg(long, value_name = "FILE", help_heading = "Evaluation")]
    eval_data: Option<PathBuf>,
}

impl EvalArgs {
    /// Returns the file, which can be read.
    pub(super) fn file(&self, run: &RunArgs) -> anyhow::Result<Option<Vec<Source>>> {
        if let Some(path) = &self.eval_data {
            readable(path)?;
        }
        let source = self.eval_data.as_ref().map(Source::new);
        Ok(source.map(|source| run.as_said([source])))
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
        ensure!(self.max_tokens > 0, "--max-tokens: 0, expected 1 or more");
        Ok(self.max_tokens)
    }
}
