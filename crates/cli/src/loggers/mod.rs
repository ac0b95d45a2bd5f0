//! Metrics of a run for other programs, as it goes.

mod program;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tinkrs_recipes::loggers::{CsvLog, MetricsLog, TensorBoardLog};
use tinkrs_recipes::run::{EvalReport, Numbers, StepReport};

use crate::output::{Hint, note};
use program::Program;

/// Where metrics go besides the run's own file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LogTo {
    /// Event files in RUN/tensorboard
    Tensorboard,
    /// RUN/metrics.csv
    Csv,
    /// Weights & Biases, by its Python package; offline files in RUN/wandb unless there is a key
    Wandb,
    /// trackio, by its Python package
    Trackio,
}

/// Where metrics go
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct LogArgs {
    /// Write metrics for other programs, too; may be repeated
    #[arg(long, value_name = "NAME", value_enum, help_heading = "Run")]
    log: Vec<LogTo>,

    /// Program that gets a line of JSON for each step and evaluation on its stdin
    ///
    /// The first line is {"event": "start", "name": …, "id": …, "run_dir": …, "config": …}, others are {"event": "step", "step": 0,
    /// "steps": 50, "metrics": {"loss": …}} and {"event": "eval", …}. It runs in a shell. Training does not wait for it.
    #[arg(long, value_name = "COMMAND", help_heading = "Run")]
    metrics_command: Option<String>,
}

impl LogArgs {
    /// Refuses what cannot be written, before anything begins.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for to in &self.log {
            let package = match to {
                LogTo::Tensorboard | LogTo::Csv => continue,
                LogTo::Wandb => "wandb",
                LogTo::Trackio => "trackio",
            };
            let mut probe = std::process::Command::new("python3");
            let probe = probe.args(["-c", &format!("import {package}")]).output();
            if !probe.is_ok_and(|output| output.status.success()) {
                let problem = anyhow!(
                    "log: {package} needs its Python package, which `python3` cannot import"
                );
                return Err(problem.context(Hint("pip install it where `python3` finds it")));
            }
        }
        Ok(())
    }
}

/// The loggers of a run.
pub(crate) struct Loggers {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: Vec<(&'static str, Box<dyn MetricsLog>)>,
    /// Made with the first number: the run's own file is then as it will be.
    csv: Option<PathBuf>,
    programs: Vec<Program>,
    /// The name and the folder of the run, until programs have been told: with the first number the folder has the
    /// settings.
    start: Option<(String, PathBuf)>,
}

impl Loggers {
    /// Opens the loggers of the run in a folder.
    pub(crate) fn open(args: &LogArgs, name: Option<&str>, folder: &Path) -> anyhow::Result<Self> {
        let mut open = Open::default();
        let mut log = args.log.clone();
        log.dedup();
        for to in log {
            match to {
                LogTo::Tensorboard => {
                    open.files
                        .push(("tensorboard", Box::new(TensorBoardLog::new(folder))));
                }
                LogTo::Csv => open.csv = Some(folder.to_owned()),
                LogTo::Wandb => open
                    .programs
                    .push(python(include_str!("wandb.py"), "wandb")?),
                LogTo::Trackio => open
                    .programs
                    .push(python(include_str!("trackio.py"), "trackio")?),
            }
        }
        if let Some(command) = &args.metrics_command {
            open.programs
                .push(Program::start(command, &format!("`{command}`"))?);
        }
        let folder = std::path::absolute(folder).context("could not name the folder of the run")?;
        let own = folder.file_name().unwrap_or_default().to_string_lossy();
        open.start = Some((name.unwrap_or(&own).to_owned(), folder));
        Ok(Self {
            open: Mutex::new(open),
        })
    }

    pub(crate) fn step(&self, report: &StepReport) {
        let line = json!({
            "event": "step",
            "step": report.step,
            "steps": report.steps,
            "metrics": finite(&report.numbers),
        });
        self.write(report.step, &report.numbers, &line);
    }

    pub(crate) fn eval(&self, report: &EvalReport) {
        let line = json!({
            "event": "eval",
            "step": report.steps,
            "is_best": report.is_best,
            "metrics": finite(&report.numbers),
        });
        self.write(report.steps, &report.numbers, &line);
    }

    fn write(&self, step: usize, numbers: &Numbers, line: &Value) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = open.csv.take() {
            match CsvLog::open(folder) {
                Ok(log) => open.files.push(("csv", Box::new(log))),
                Err(error) => note(format_args!("warning: no csv is written: {error}")),
            }
        }
        // A log that cannot be written is no reason to lose a run.
        open.files
            .retain_mut(|(name, log)| match log.write(step, numbers) {
                Ok(()) => true,
                Err(error) => {
                    let error = anyhow::Error::new(error);
                    note(format_args!(
                        "warning: {name} is not written any more: {error:#}"
                    ));
                    false
                }
            });
        let start = open
            .start
            .take()
            .map(|(name, folder)| start(&name, &folder));
        for program in &mut open.programs {
            if let Some(start) = &start {
                program.send(start);
            }
            program.send(line);
        }
    }

    /// Waits until programs have read everything.
    pub(crate) async fn end(self) {
        let open = self
            .open
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for program in open.programs {
            program.end().await;
        }
    }
}

/// Returns what programs are told first.
fn start(name: &str, folder: &Path) -> Value {
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    let config = read("config.json").and_then(|text| parse(&text));
    let journal = read("journal.jsonl");
    let begun = journal.and_then(|text| parse(text.lines().next()?));
    json!({
        "event": "start",
        "name": name,
        // The same for all parts of a run that was stopped.
        "id": begun.map(|begun| begun["resume_id"].clone()),
        "run_dir": folder,
        "config": config.unwrap_or(json!({})),
    })
}

fn python(script: &str, name: &str) -> anyhow::Result<Program> {
    let quoted = script.replace('\'', "'\\''");
    Program::start(&format!("exec python3 -u -c '{quoted}'"), name)
}

/// JSON has no place for numbers that are not finite.
fn finite(numbers: &Numbers) -> Numbers {
    let finite = numbers.iter().filter(|(_, number)| number.is_finite());
    finite
        .map(|(name, number)| (name.clone(), *number))
        .collect()
}
