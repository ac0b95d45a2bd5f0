use anyhow::anyhow;
use jiff::Timestamp;
use serde::Serialize;
use tinkrs::rest::Checkpoint;

use super::list::all_of_run;
use super::{ANY_KIND, expiry, find, read_reference};
use crate::command::run::lora;
use crate::context::Context;
use crate::human::{age, size, yes_no};
use crate::output::Hint;
use crate::table::Table;

/// Show one checkpoint
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checkpoint: its path, `tinker://...`, or its run, such as `my-run` or `my-run@120`
    path: String,
}

/// A checkpoint and what its run says of its weights.
#[derive(Debug, Serialize)]
struct Info {
    #[serde(flatten)]
    checkpoint: Checkpoint,
    is_lora: bool,
    lora_rank: Option<u32>,
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let path = find(ctx, &read_reference(&args.path)?, &ANY_KIND).await?;
    let checkpoints = all_of_run(ctx, path.run().as_str()).await?;
    let found = checkpoints.into_iter().find(|c| c.tinker_path == path);
    let checkpoint = found.ok_or_else(|| {
        anyhow!("there is no checkpoint {path}").context(Hint(
            "`tinkrs checkpoint list --run-id RUN` shows those of a run",
        ))
    })?;
    let rest = ctx.rest();
    let run = rest.get_training_run(path.run()).into_future();
    let run = ctx.ask("show the checkpoint's training run", run).await?;
    let info = Info {
        checkpoint,
        is_lora: run.is_lora,
        lora_rank: run.lora_rank,
    };
    ctx.show(&info, || properties(&info, Timestamp::now()))
}

fn properties(info: &Info, now: Timestamp) -> Table {
    let checkpoint = &info.checkpoint;
    let path = &checkpoint.tinker_path;
    let mut table = Table::properties().title(format!("Checkpoint: {}", checkpoint.checkpoint_id));
    table.row(["Checkpoint ID", &checkpoint.checkpoint_id]);
    table.row(["Type", &checkpoint.checkpoint_type.to_string()]);
    table.row(["Tinker Path", &path.to_string()]);
    if let Some(bytes) = checkpoint.size_bytes {
        table.row(["Size", &size(bytes)]);
    }
    table.row(["Public", yes_no(checkpoint.public)]);
    table.row(["Created", &age(checkpoint.time, now)]);
    table.row(["Expires", &expiry(checkpoint, now)]);
    table.row(["Training Run ID", path.run().as_str()]);
    table.row(["LoRA", &lora(info.is_lora, info.lora_rank)]);
    table
}
