//! Commands that change one thing about a checkpoint.

use std::time::Duration;

use serde_json::json;

use super::{ANY_KIND, find, read_reference};
use crate::context::Context;

/// Let everybody read a checkpoint
#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// Checkpoint: its path, `tinker://...`, or its run, such as `my-run` or `my-run@120`
    path: String,
}

/// Make a published checkpoint private again
#[derive(Debug, clap::Args)]
pub(crate) struct UnpublishArgs {
    /// Checkpoint: its path, `tinker://...`, or its run, such as `my-run` or `my-run@120`
    path: String,
}

/// Set how long a checkpoint is kept
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("time").required(true).args(["ttl", "remove"])))]
pub(crate) struct SetTtlArgs {
    /// Checkpoint: its path, `tinker://...`, or its run, such as `my-run` or `my-run@120`
    path: String,

    /// Delete it after this many seconds from now: an hour to ten years
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,

    /// Keep it until it is deleted
    #[arg(long)]
    remove: bool,
}

pub(super) async fn publish(ctx: &Context, args: &PublishArgs) -> anyhow::Result<()> {
    let path = find(ctx, &read_reference(&args.path)?, &ANY_KIND).await?;
    let rest = ctx.rest();
    let call = rest.publish_checkpoint(&path);
    ctx.ask("publish the checkpoint", call).await?;
    let value = json!({"tinker_path": path, "public": true});
    ctx.done(&value, format_args!("Published {path}"))
}

pub(super) async fn unpublish(ctx: &Context, args: &UnpublishArgs) -> anyhow::Result<()> {
    let path = find(ctx, &read_reference(&args.path)?, &ANY_KIND).await?;
    let rest = ctx.rest();
    let call = rest.unpublish_checkpoint(&path);
    ctx.ask("unpublish the checkpoint", call).await?;
    let value = json!({"tinker_path": path, "public": false});
    ctx.done(&value, format_args!("Unpublished {path}"))
}

pub(super) async fn set_ttl(ctx: &Context, args: &SetTtlArgs) -> anyhow::Result<()> {
    let path = find(ctx, &read_reference(&args.path)?, &ANY_KIND).await?;
    let rest = ctx.rest();
    let ttl = args.ttl.map(Duration::from_secs);
    let call = rest.set_checkpoint_ttl(&path, ttl);
    ctx.ask("set how long the checkpoint is kept", call).await?;
    let value = json!({"tinker_path": path, "ttl_seconds": args.ttl});
    match args.ttl {
        Some(seconds) => ctx.done(&value, format_args!("{path} expires in {seconds} s")),
        None => ctx.done(&value, format_args!("{path} never expires")),
    }
}
