use std::error::Error as _;

use anyhow::anyhow;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde::Serialize;
use tinkrs::rest::Checkpoint;
use tinkrs::{CheckpointKind, RestClient, TinkerPath};

use super::list::all_of_run;
use super::{ANY_KIND, find, read_reference, size_of};
use crate::context::{Context, ascii};
use crate::human::{age, counted, read_time, size};
use crate::prompt::confirm;
use crate::status_line::StatusLine;
use crate::table::printable;

/// How many deletions are under way at a time.
const PARALLEL: usize = 32;

/// Delete checkpoints permanently
///
/// Either names them by path, or selects those of one run with filters. Asks first, unless told
/// not to.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("selection").required(true).args(["paths", "run_id"])))]
pub(crate) struct Args {
    /// Checkpoints: paths, `tinker://...`, or runs, such as `my-run@120`
    #[arg(value_name = "PATH")]
    paths: Vec<String>,

    /// Delete the checkpoints of this run
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// Only those of this type: weights (training), sampler_weights (sampler) or external_weights
    /// (external)
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "paths", value_parser = read_kind)]
    kind: Option<CheckpointKind>,

    /// Only those that were created before this date or time (ISO 8601; UTC unless it says so)
    #[arg(long, value_name = "DATE", conflicts_with = "paths", value_parser = read_time)]
    before: Option<Timestamp>,

    /// Only those that were created after this date or time
    #[arg(long, value_name = "DATE", conflicts_with = "paths", value_parser = read_time)]
    after: Option<Timestamp>,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Only show what would be deleted
    #[arg(long)]
    dry_run: bool,
}

/// A checkpoint to delete, with what a listing says of it.
#[derive(Debug)]
struct Target {
    path: TinkerPath,
    listed: Option<Checkpoint>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    deleted_count: usize,
    failed: Vec<Failed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    would_delete: Option<Vec<TinkerPath>>,
}

#[derive(Debug, Serialize)]
struct Failed {
    tinker_path: TinkerPath,
    error: String,
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let targets = targets(ctx, args).await?;
    if args.dry_run || targets.is_empty() {
        return show_targets(ctx, args, &targets);
    }
    if !args.yes {
        ctx.note(warning(&targets, Timestamp::now()).trim_end());
        if !confirm("Delete them?").await? {
            ctx.note("Cancelled: nothing was deleted");
            return Ok(());
        }
    }
    let outcome = delete(ctx, targets).await;
    let failures = outcome.failed.len();
    if ctx.is_json() {
        ctx.line(ascii(&serde_json::to_string(&outcome)?))?;
    } else {
        let deleted = counted(outcome.deleted_count as u64, "checkpoint");
        ctx.line(format_args!("Deleted {deleted}"))?;
        for failed in &outcome.failed {
            let reason = format!("Failed: {}: {}", failed.tinker_path, failed.error);
            ctx.line(printable(&reason))?;
        }
    }
    match failures {
        0 => Ok(()),
        _ => Err(anyhow!(
            "{} could not be deleted",
            counted(failures as u64, "checkpoint")
        )),
    }
}

async fn targets(ctx: &Context, args: &Args) -> anyhow::Result<Vec<Target>> {
    let Some(run) = &args.run_id else {
        let mut paths = Vec::new();
        for text in &args.paths {
            let path = find(ctx, &read_reference(text)?, &ANY_KIND).await?;
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        let target = |path| Target { path, listed: None };
        return Ok(paths.into_iter().map(target).collect());
    };
    let mut checkpoints = all_of_run(ctx, run).await?;
    checkpoints.retain(|checkpoint| is_selected(checkpoint, args));
    let target = |checkpoint: Checkpoint| Target {
        path: checkpoint.tinker_path.clone(),
        listed: Some(checkpoint),
    };
    Ok(checkpoints.into_iter().map(target).collect())
}

fn is_selected(checkpoint: &Checkpoint, args: &Args) -> bool {
    args.kind
        .is_none_or(|kind| checkpoint.checkpoint_type == kind)
        && args.before.is_none_or(|time| checkpoint.time < time)
        && args.after.is_none_or(|time| checkpoint.time > time)
}

fn show_targets(ctx: &Context, args: &Args, targets: &[Target]) -> anyhow::Result<()> {
    if ctx.is_json() {
        let paths = targets.iter().map(|target| target.path.clone());
        let outcome = Outcome {
            deleted_count: 0,
            failed: Vec::new(),
            would_delete: args.dry_run.then(|| paths.collect()),
        };
        return ctx.line(ascii(&serde_json::to_string(&outcome)?));
    }
    if targets.is_empty() {
        return ctx.line("No checkpoints match: there is nothing to delete");
    }
    ctx.line(format_args!(
        "{}\nThis is a dry run: nothing was deleted",
        describe(targets, Timestamp::now()).trim_end()
    ))
}

fn warning(targets: &[Target], now: Timestamp) -> String {
    let list = describe(targets, now);
    format!("{list}Deleting cannot be undone.\n")
}

/// Lists checkpoints with what is known of them.
fn describe(targets: &[Target], now: Timestamp) -> String {
    let mut text = format!(
        "{} to delete:\n",
        counted(targets.len() as u64, "checkpoint")
    );
    for Target { path, listed } in targets {
        let details = listed.as_ref().map_or_else(String::new, |checkpoint| {
            format!(
                " ({}, created {})",
                size_of(checkpoint),
                age(checkpoint.time, now)
            )
        });
        text.push_str(&printable(&format!("  {path}{details}")));
        text.push('\n');
    }
    let sizes = targets
        .iter()
        .filter_map(|target| target.listed.as_ref()?.size_bytes);
    let total: u64 = sizes.sum();
    if total > 0 {
        text.push_str(&format!("Total size: {}\n", size(total)));
    }
    text
}

async fn delete(ctx: &Context, targets: Vec<Target>) -> Outcome {
    let (rest, count) = (ctx.rest(), targets.len());
    let progress = StatusLine::new(ctx);
    let mut deletions = stream::iter(targets)
        .map(|target| delete_one(&rest, target.path))
        .buffered(PARALLEL);
    let mut outcome = Outcome {
        deleted_count: 0,
        failed: Vec::new(),
        would_delete: None,
    };
    while let Some(result) = deletions.next().await {
        match result {
            Ok(()) => outcome.deleted_count += 1,
            Err(failed) => outcome.failed.push(failed),
        }
        let done = outcome.deleted_count + outcome.failed.len();
        progress.say(|| format!("Deleting checkpoints: {done} of {count}"));
    }
    outcome
}

async fn delete_one(rest: &RestClient, tinker_path: TinkerPath) -> Result<(), Failed> {
    let deleted = rest.delete_checkpoint(&tinker_path).await;
    deleted.map_err(|error| {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            text.push_str(&format!(": {inner}"));
            cause = inner.source();
        }
        Failed {
            tinker_path,
            error: text,
        }
    })
}

fn read_kind(text: &str) -> Result<CheckpointKind, String> {
    match text {
        "weights" | "training" => Ok(CheckpointKind::Training),
        "sampler_weights" | "sampler" => Ok(CheckpointKind::Sampler),
        "external_weights" | "external" => Ok(CheckpointKind::External),
        _ => Err("the types are weights, sampler_weights and external_weights".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_lists_what_is_known() {
        let path: TinkerPath = "tinker://r:train:0/weights/a".parse().unwrap();
        let checkpoint: Checkpoint = serde_json::from_value(serde_json::json!({
            "checkpoint_id": "weights/a", "checkpoint_type": "training",
            "time": "2026-01-01T00:00:00Z", "tinker_path": path, "size_bytes": 2048,
        }))
        .unwrap();
        let now = "2026-01-03T00:00:00Z".parse().unwrap();
        let unknown = Target {
            path: "tinker://r:train:0/weights/b".parse().unwrap(),
            listed: None,
        };
        let listed = Some(checkpoint);
        assert_eq!(
            describe(&[Target { path, listed }, unknown], now),
            "2 checkpoints to delete:\n  \
             tinker://r:train:0/weights/a (2.0 KB, created 2 days ago)\n  \
             tinker://r:train:0/weights/b\n\
             Total size: 2.0 KB\n"
        );
    }
}
