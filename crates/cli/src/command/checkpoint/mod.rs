//! `tinkrs checkpoint`: saved weights.

mod change;
mod delete;
mod download;
mod hub;
mod import;
mod info;
mod list;
mod model_card;
mod push_hf;

pub(crate) use push_hf::check_repo;

use anyhow::Context as _;
use jiff::Timestamp;
use tinkrs::TinkerPath;
use tinkrs::rest::Checkpoint;

use crate::context::Context;
use crate::human::{age, or_unknown, size};
use crate::output::Hint;

/// List, download, share and delete saved weights
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Info(info::Args),
    Download(download::Args),
    Import(import::Args),
    Publish(change::PublishArgs),
    Unpublish(change::UnpublishArgs),
    SetTtl(change::SetTtlArgs),
    Delete(delete::Args),
    PushHf(push_hf::Args),
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list::run(ctx, args).await,
        Command::Info(args) => info::run(ctx, args).await,
        Command::Download(args) => download::run(ctx, args).await,
        Command::Import(args) => import::run(ctx, args).await,
        Command::Publish(args) => change::publish(ctx, args).await,
        Command::Unpublish(args) => change::unpublish(ctx, args).await,
        Command::SetTtl(args) => change::set_ttl(ctx, args).await,
        Command::Delete(args) => delete::run(ctx, args).await,
        Command::PushHf(args) => push_hf::run(ctx, args).await,
    }
}

/// Reads the path of a checkpoint.
fn read_path(text: &str) -> anyhow::Result<TinkerPath> {
    let path = text.parse::<TinkerPath>();
    path.with_context(|| format!("`{text}` is not the path of a checkpoint"))
        .context(Hint("`tinkrs checkpoint list` shows paths"))
}

fn expiry(checkpoint: &Checkpoint, now: Timestamp) -> String {
    let expires = checkpoint.expires_at;
    expires.map_or_else(|| "Never".to_owned(), |time| age(time, now))
}

fn size_of(checkpoint: &Checkpoint) -> String {
    or_unknown(checkpoint.size_bytes.map(size))
}
