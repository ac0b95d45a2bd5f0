//! `tinkrs checkpoint`: saved weights.

mod change;
mod delete;
pub(super) mod download;
mod hub;
pub(crate) mod import;
mod info;
mod list;
mod model_card;
mod push_hf;

pub(crate) use push_hf::check_repo;

use anyhow::Context as _;
use jiff::Timestamp;
use tinkrs::rest::Checkpoint;
use tinkrs::{CheckpointKind, CheckpointRef, TinkerPath};

use crate::context::Context;
use crate::hint;
use crate::human::{age, or_unknown, size};
use crate::on_server::{NeededModel, OnServer};
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

pub(crate) async fn run(ctx: &Context, args: &OnServer<Command>) -> anyhow::Result<()> {
    // Files to download are made of a training checkpoint by its model.
    let path = match &args.command {
        Command::Download(args) => Some(read_reference(args.path())?),
        Command::PushHf(args) => Some(read_reference(args.path())?),
        _ => None,
    };
    let is_training = |path: &TinkerPath| path.kind() == CheckpointKind::Training;
    let path = path.filter(|path| path.path().is_none_or(is_training));
    let need = match (&args.command, &path) {
        (Command::Import(args), _) => NeededModel::Named(args.base_model()),
        (_, Some(path)) => NeededModel::BaseOf(path),
        _ => NeededModel::None,
    };
    args.run(ctx, need, run_on).await
}

async fn run_on(ctx: &Context, command: &Command) -> anyhow::Result<()> {
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

/// All kinds of checkpoints, those that are most used first.
const ANY_KIND: [CheckpointKind; 3] = [
    CheckpointKind::Sampler,
    CheckpointKind::Training,
    CheckpointKind::External,
];

/// Those of which files can be had.
const WITH_FILES: [CheckpointKind; 2] = [CheckpointKind::Training, CheckpointKind::External];

/// Finds a checkpoint by its path or its run.
pub(super) async fn find(
    ctx: &Context,
    checkpoint: &CheckpointRef,
    kinds: &[CheckpointKind],
) -> anyhow::Result<TinkerPath> {
    let rest = ctx.rest();
    let found = rest.resolve_checkpoint(checkpoint, kinds).await;
    found.map_err(|error| hint::no_checkpoint(error, checkpoint))
}

/// Reads how a checkpoint is named.
pub(super) fn read_reference(text: &str) -> anyhow::Result<CheckpointRef> {
    let path = text.parse::<CheckpointRef>();
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
