use anyhow::ensure;
use jiff::Timestamp;
use serde::Serialize;
use tinkrs::rest::Checkpoint;

use super::{expiry, size_of};
use crate::command::listing::{self, LimitArgs, Listed};
use crate::context::Context;
use crate::human::{age, yes_no};
use crate::table::Table;

/// The server gives no more checkpoints at once.
const PAGE: u64 = 1000;

/// List checkpoints, newest first
///
/// Without `--run-id`, lists the checkpoints of all your runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the checkpoints of this run, all of them; by its name or id
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    #[command(flatten)]
    rows: LimitArgs,
}

#[derive(Debug, Serialize)]
struct Checkpoints<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a str>,
    checkpoints: Vec<Checkpoint>,
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let (rest, run_id) = (ctx.rest(), args.run_id.as_deref());
    let (listed, of) = match run_id {
        Some(id) => (of_run(ctx, id).await?, format!(" for run {id}")),
        None => {
            let page = |limit, offset| {
                let rest = rest.clone();
                async move {
                    let page = rest
                        .list_user_checkpoints()
                        .limit(limit)
                        .offset(offset)
                        .await?;
                    let total = page.cursor.map(|cursor| cursor.total_count);
                    Ok((page.checkpoints, total))
                }
            };
            let listed = listing::fetch(ctx, "checkpoint", args.rows.limit, PAGE, page).await?;
            (listed, String::new())
        }
    };
    let shown = listed.items.len() as u64;
    let title = listing::title("checkpoint", shown, listed.total, &of);
    let checkpoints = Checkpoints {
        run_id,
        checkpoints: listed.items,
    };
    ctx.show(&checkpoints, || {
        table(&checkpoints.checkpoints, Timestamp::now()).title(title)
    })
}

async fn of_run(ctx: &Context, id: &str) -> anyhow::Result<Listed<Checkpoint>> {
    let items = all_of_run(ctx, id).await?;
    let total = items.len() as u64;
    Ok(Listed { items, total })
}

/// Lists every checkpoint of a run.
pub(super) async fn all_of_run(ctx: &Context, id: &str) -> anyhow::Result<Vec<Checkpoint>> {
    ensure!(
        !id.is_empty() && !id.contains('/'),
        "`{id}` is not the id of a training run"
    );
    let rest = ctx.rest();
    let id = ctx
        .ask("find the training run", rest.resolve_run(id))
        .await?;
    ctx.ask("list checkpoints", rest.list_checkpoints(&id))
        .await
}

fn table(checkpoints: &[Checkpoint], now: Timestamp) -> Table {
    let mut table = Table::new([
        "Checkpoint ID",
        "Type",
        "Size",
        "Public",
        "Created",
        "Expires",
        "Path",
    ]);
    for checkpoint in checkpoints {
        table.row([
            checkpoint.checkpoint_id.as_str(),
            &checkpoint.checkpoint_type.to_string(),
            &size_of(checkpoint),
            yes_no(checkpoint.public),
            &age(checkpoint.time, now),
            &expiry(checkpoint, now),
            &checkpoint.tinker_path.to_string(),
        ]);
    }
    table
}
