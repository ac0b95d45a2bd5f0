//! Commands that ask a server, whatever models it has: they list, describe, download and delete.

use anyhow::Context;
use tinkrs::{CheckpointKind, CheckpointRef};

use crate::backend::{hosted, open_local};
use crate::context;
use crate::data_folder;
use crate::local::LocalServer;
use crate::output::{self, Hint};
use crate::server_args::{Choice, Environment, ServerArgs, Target};

/// A command and the server that it is for
#[derive(Debug, clap::Args)]
pub(crate) struct OnServer<C: clap::Subcommand> {
    #[command(flatten)]
    server: ServerArgs,

    #[command(subcommand)]
    pub(crate) command: C,
}

/// Which model has to be served for a command on this machine. Listing and deleting need none, so none is loaded.
#[derive(Debug, PartialEq)]
pub(crate) enum NeededModel<'a> {
    None,
    Named(&'a str),
    /// The model that a checkpoint was trained on.
    BaseOf(&'a CheckpointRef),
}

impl<C: clap::Subcommand> OnServer<C> {
    /// Runs a command on the server.
    pub(crate) async fn run(
        &self,
        ctx: &context::Context,
        need: NeededModel<'_>,
        work: impl AsyncFnOnce(&context::Context, &C) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let work = async |ctx: &context::Context| work(ctx, &self.command).await;
        on_server(ctx, &self.server, need, work).await
    }
}

/// Does something with a server, and says on stderr which one it is.
pub(crate) async fn on_server<T>(
    ctx: &context::Context,
    args: &ServerArgs,
    need: NeededModel<'_>,
    work: impl AsyncFnOnce(&context::Context) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let server = OpenServer::open(ctx, args, need).await?;
    let result = work(&ctx.on(server.target.clone())).await;
    server.stop(result).await
}

/// A server that can be asked, whatever models it has.
struct OpenServer {
    target: Target,
    local: Option<LocalServer>,
    /// What is here only for as long as the command runs.
    _files: Option<tempfile::TempDir>,
}

impl OpenServer {
    /// Finds the server, and says on stderr which one it is.
    async fn open(
        ctx: &context::Context,
        args: &ServerArgs,
        need: NeededModel<'_>,
    ) -> anyhow::Result<Self> {
        let target = match args.choose(false, &Environment::read()) {
            Choice::Url(url) => {
                output::note(format_args!("server: {url}"));
                Target::Url(url)
            }
            Choice::Hosted => {
                output::note(hosted(args, "with your key"));
                Target::Environment
            }
            Choice::Local => return Self::open_local(ctx, args, need).await,
        };
        Ok(Self {
            target,
            local: None,
            _files: None,
        })
    }

    async fn open_local(
        ctx: &context::Context,
        args: &ServerArgs,
        need: NeededModel<'_>,
    ) -> anyhow::Result<Self> {
        let folder = args.data_dir();
        if folder.exists() && !folder.is_dir() {
            let problem = anyhow::anyhow!("{} is not a folder", folder.display());
            return Err(problem.context(Hint("name a data folder with `--data-dir`")));
        }
        let (local, files) = if folder.is_dir() || need != NeededModel::None {
            let wanted = match need {
                NeededModel::None => None,
                NeededModel::Named(name) => Some(data_folder::find(name)?),
                NeededModel::BaseOf(checkpoint) => {
                    let kinds = [CheckpointKind::Training];
                    let base = data_folder::base_of(ctx, args, checkpoint, &kinds).await?;
                    Some(data_folder::find_base(folder, &base)?)
                }
            };
            let _prepared = data_folder::prepare(folder)?;
            let model = wanted.map(|wanted| wanted.place(folder)).transpose()?;
            let local = open_local(ctx, args, model.as_slice()).await?;
            output::note(format_args!(
                "local: {}{}",
                folder.display(),
                local.through()
            ));
            (local, None)
        } else {
            // Looking at what is there makes no folder.
            output::note(format_args!("local: {} is not there yet", folder.display()));
            let empty = tempfile::tempdir().context("could not make a folder")?;
            let local = LocalServer::open(empty.path(), &[], ctx.command()).await?;
            (local, Some(empty))
        };
        Ok(Self {
            target: local.target(),
            local: Some(local),
            _files: files,
        })
    }

    async fn stop<T>(self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let stopped = match self.local {
            Some(local) => local.stop().await,
            None => Ok(()),
        };
        let done = result?;
        stopped.map(|()| done)
    }
}
