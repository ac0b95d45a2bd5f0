//! `tinkrs billing`: what was used, and what is stored.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use jiff::Timestamp;
use tinkrs::ProjectId;
use tinkrs::admin::{BillingUsage, StorageUsage};

use super::rows::{Rows, storage_rows, usage_rows};
use crate::context::Context;
use crate::human::{counted, read_time};

/// Show usage and storage, for administrators
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Usage(UsageArgs),
    CheckpointStorage(StorageArgs),
}

/// Show usage by the hour
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    /// First hour, such as 2026-01-31T00:00:00Z
    #[arg(value_parser = read_time)]
    starting_on: Timestamp,

    /// Hour to stop before, at most 14 days later
    #[arg(value_parser = read_time)]
    ending_before: Timestamp,

    /// Write the usage to this file instead, as CSV; `-` is stdout
    #[arg(long, value_name = "PATH")]
    csv: Option<PathBuf>,

    /// Write the sessions and their labels to this file instead, as CSV; `-` is stdout
    #[arg(long, value_name = "PATH")]
    sessions_csv: Option<PathBuf>,
}

/// Show how much checkpoints take up now
#[derive(Debug, clap::Args)]
pub(crate) struct StorageArgs {
    /// Only those of this project
    #[arg(long, value_name = "ID")]
    project_id: Option<String>,

    /// Write the rows to this file instead, as CSV; `-` is stdout
    #[arg(long, value_name = "PATH")]
    csv: Option<PathBuf>,
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Usage(args) => usage(ctx, args).await,
        Command::CheckpointStorage(args) => storage(ctx, args).await,
    }
}

async fn usage(ctx: &Context, args: &UsageArgs) -> anyhow::Result<()> {
    let admin = ctx.admin();
    let usage = admin.get_billing_usage(args.starting_on, args.ending_before);
    let usage: BillingUsage = ctx.ask("read the usage", usage).await?;
    if let Some(path) = &args.sessions_csv {
        write_csv(ctx, path, &sessions(&usage)?)?;
    }
    if let Some(path) = &args.csv {
        write_csv(ctx, path, &usage_rows(&usage.data)?)?;
    }
    if args.csv.is_some() || args.sessions_csv.is_some() {
        return Ok(());
    }
    let rows = usage_rows(&usage.data)?;
    let title = match usage.data.len() as u64 {
        0 => "No billing usage in this window".to_owned(),
        count => counted(count, "hourly usage row"),
    };
    ctx.show(&usage, || rows.table(&title))
}

/// Lists the sessions of a report with their labels as JSON.
fn sessions(usage: &BillingUsage) -> anyhow::Result<Rows> {
    let mut rows = Rows::new(["session_id", "user_metadata"]);
    for (id, session) in &usage.sessions {
        let labels = session.user_metadata.as_ref();
        let labels = labels.map(serde_json::to_string).transpose()?;
        rows.push(vec![Some(id.to_string()), labels]);
    }
    Ok(rows)
}

async fn storage(ctx: &Context, args: &StorageArgs) -> anyhow::Result<()> {
    let admin = ctx.admin();
    let project = args.project_id.as_deref().map(ProjectId::from);
    let usage = admin.get_current_checkpoint_storage_usage(project.as_ref());
    let usage: StorageUsage = ctx.ask("read the checkpoint storage", usage).await?;
    let rows = storage_rows(&usage);
    if let Some(path) = &args.csv {
        return write_csv(ctx, path, &rows);
    }
    let title = if usage.data.is_empty() {
        "No active checkpoint storage"
    } else {
        "Current checkpoint storage"
    };
    ctx.show(&usage, || rows.table(title))
}

fn write_csv(ctx: &Context, path: &Path, rows: &Rows) -> anyhow::Result<()> {
    let text = rows.csv();
    if path == Path::new("-") {
        std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes())?;
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("could not write {}", path.display()))?;
    let count = counted(rows.len() as u64, "row");
    ctx.note(format_args!("Wrote {count} to {}", path.display()));
    Ok(())
}
