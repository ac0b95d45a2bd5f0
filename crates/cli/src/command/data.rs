//! `tinkrs data`: files to train on, and the data folder of a server that is not running.

mod files;

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use tinkrs_server::data::{self, DataReport};

use crate::context::Context;
use crate::human::counted;
use crate::output::Hint;
use crate::private;
use crate::table::Table;

/// Look at files to train on, or check and repair the data folder of a server
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Show(files::ShowArgs),
    Stats(files::StatsArgs),
    Check(Check),
    Repair(Repair),
}

/// Say what is wrong with a data folder
///
/// Reads the database and every file of saved weights, and compares them with each other and with their digests. Changes nothing. The exit
/// code is 1 if something is wrong. The server must not be running.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Data folder of a server (its `--data-dir`)
    dir: PathBuf,
}

/// Rebuild the database of a data folder from what is saved there
///
/// Saved weights say whose they are and what they are, so the rows that a database has lost can be written again. A database that
/// cannot be read is replaced, and kept under a dated name; training that was under way is then in a checkpoint `recovered-N`. Nothing is ever
/// deleted. The server must not be running.
#[derive(Debug, clap::Args)]
pub(crate) struct Repair {
    /// Data folder of a server (its `--data-dir`)
    dir: PathBuf,
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    let report = match command {
        Command::Show(args) => return files::show(ctx, args).await,
        Command::Stats(args) => return files::stats(ctx, args).await,
        Command::Check(Check { dir }) => {
            let scratch = tempfile::tempdir().context("could not make a temporary folder")?;
            data::check(dir, scratch.path())
                .with_context(|| format!("could not check {}", dir.display()))?
        }
        Command::Repair(Repair { dir }) => {
            private::write_privately();
            data::repair(dir).with_context(|| format!("could not repair {}", dir.display()))?
        }
    };
    ctx.show(&report, || {
        table(&report, matches!(command, Command::Repair(_)))
    })?;
    let problems = report.problems.len() as u64;
    if problems == 0 {
        return Ok(());
    }
    let repairable = report.problems.iter().filter(|problem| problem.repairable);
    let error = anyhow!("found {}", counted(problems, "problem"));
    Err(match repairable.count() {
        0 => error,
        _ => error.context(Hint("`tinkrs data repair` with the same folder")),
    })
}

fn table(report: &DataReport, is_repair: bool) -> Table {
    let mut table = Table::new(["Result", "Detail"]);
    for done in &report.done {
        table.row(["done", done]);
    }
    for problem in &report.problems {
        let detail = format!("{}: {}", problem.path.display(), problem.problem);
        table.row(["PROBLEM", &detail]);
    }
    if is_repair && report.done.is_empty() {
        table.row(["ok", "nothing to do"]);
    }
    if report.problems.is_empty() {
        let detail = format!(
            "{}, {} as they were saved",
            counted(report.checkpoints as u64, "checkpoint"),
            counted(report.files as u64, "file")
        );
        table.row(["ok", &detail]);
    }
    table
}
