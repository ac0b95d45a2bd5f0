//! Where a command runs: on this machine, or on another server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tinkrs::rest::download::OnProgress;
use tinkrs::{
    CheckpointKind, CheckpointRef, FinishReason, SamplingClient, ServiceClient, TinkerPath,
    TokenizerSource,
};
use tinkrs_chat::Renderer;
use tinkrs_server::SessionWatch;
use tinkrs_server::data::Privacy;

use crate::context;
use crate::ending::{self, Ending};
use crate::hint;
use crate::local::LocalServer;
use crate::local_model::{self, NamedModel, Wanted};
use crate::output::{self, Hint};
use crate::private;
use crate::server_args::{Choice, Environment, ServerArgs, Target, quoted};

/// Which server and which model to use
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct BackendArgs {
    /// Model: a name that `tinkrs models list` or the server has, or NAME=PATH for a Hugging Face folder
    /// or GGUF file on this machine. Default: that of the checkpoint, if one is named, else tinkrs/nano
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,

    #[command(flatten)]
    #[serde(flatten)]
    server: ServerArgs,
}

impl BackendArgs {
    /// Returns what to type next for a run that has ended: commands that work as they are.
    pub(crate) fn next_commands(&self, is_local: bool, run: &str) -> Vec<String> {
        let model = self.model.as_deref().filter(|model| model.contains('='));
        let base = model.and_then(|model| model.split_once('='));
        let base = base.map_or(String::new(), |(_, path)| {
            format!(" --base {}", quoted(path))
        });
        let model = model.map_or(String::new(), |model| format!(" --model {}", quoted(model)));
        if !is_local {
            let server = self.server.typed_for_url();
            return vec![format!("tinkrs chat --checkpoint {run}{server}")];
        }
        let server = self.server.typed_for_local(&Environment::read());
        let data = self.server.typed_for_local(&Environment::default());
        let served = match &self.model {
            Some(name) if model.is_empty() && name != tinkrs_nano::NAME => {
                format!(" --model {}", quoted(name))
            }
            _ => model.clone(),
        };
        vec![
            format!("tinkrs chat --checkpoint {run}{model}{server}"),
            format!("tinkrs serve{served}{data}"),
            format!("tinkrs export {run} --format merged --to {run}-merged{base}{server}"),
        ]
    }

    fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(tinkrs_nano::NAME)
    }
}

/// A command and the server that it is for
#[derive(Debug, clap::Args)]
pub(crate) struct OnServer<C: clap::Subcommand> {
    #[command(flatten)]
    server: ServerArgs,

    #[command(subcommand)]
    pub(crate) command: C,
}

/// What a command needs of a server's models. Listing and deleting need none, so none is loaded.
#[derive(Debug, PartialEq)]
pub(crate) enum Need<'a> {
    NoModel,
    Model(&'a str),
    /// The model that a checkpoint was trained on.
    BaseOf(&'a CheckpointRef),
}

impl<C: clap::Subcommand> OnServer<C> {
    /// Runs a command on the server.
    pub(crate) async fn run(
        &self,
        ctx: &context::Context,
        need: Need<'_>,
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
    need: Need<'_>,
    work: impl AsyncFnOnce(&context::Context) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let place = Place::open(ctx, args, need).await?;
    let result = work(&ctx.on(place.target.clone())).await;
    place.stop(result).await
}

/// A server that can be asked, whatever models it has.
struct Place {
    target: Target,
    local: Option<LocalServer>,
    /// What is here only for as long as the command runs.
    _files: Option<tempfile::TempDir>,
}

impl Place {
    /// Finds the server, and says on stderr which one it is.
    async fn open(
        ctx: &context::Context,
        args: &ServerArgs,
        need: Need<'_>,
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
        need: Need<'_>,
    ) -> anyhow::Result<Self> {
        let folder = args.data_dir();
        let (local, files) = if folder.is_dir() || need != Need::NoModel {
            keep_private(folder)?;
            let model = match need {
                Need::NoModel => None,
                Need::Model(name) => Some(name.to_owned()),
                Need::BaseOf(checkpoint) => {
                    let kinds = [CheckpointKind::Training];
                    Some(local_base(ctx, args, checkpoint, &kinds).await?)
                }
            };
            let model = model.map(|name| here(&name)?.place(folder)).transpose()?;
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

/// Opens a folder of this machine with some models. The command ends if another process serves the folder
/// and is gone.
async fn open_local(
    ctx: &context::Context,
    args: &ServerArgs,
    models: &[NamedModel],
) -> anyhow::Result<LocalServer> {
    let local = LocalServer::open(args.data_dir(), models, ctx.command()).await?;
    if matches!(local, LocalServer::Joined { .. }) {
        ctx.fail_when(local.lost());
    }
    Ok(local)
}

/// Makes a data folder that only its owner can enter, and says so if others can.
fn keep_private(data: &Path) -> anyhow::Result<()> {
    if private::prepare(data)? == Privacy::OpenToOthers {
        let data = data.display();
        output::note(format_args!(
            "other users of this machine can enter {data}; `chmod 700 {data}` keeps them out"
        ));
    }
    Ok(())
}

/// Asks a folder of this machine which model a checkpoint was trained on. That is known before any is loaded.
async fn local_base(
    ctx: &context::Context,
    args: &ServerArgs,
    checkpoint: &CheckpointRef,
    kinds: &[CheckpointKind],
) -> anyhow::Result<String> {
    keep_private(args.data_dir())?;
    let local = LocalServer::open(args.data_dir(), &[], ctx.command()).await?;
    let base = base_of(&ctx.on(local.target()), checkpoint, kinds).await;
    local.stop().await?;
    base
}

/// Asks the server which model a checkpoint was trained on.
async fn base_of(
    ctx: &context::Context,
    checkpoint: &CheckpointRef,
    kinds: &[CheckpointKind],
) -> anyhow::Result<String> {
    let rest = ctx.rest();
    let path = rest.resolve_checkpoint(checkpoint, kinds);
    let path = ctx.ask("find the checkpoint", path).await?;
    let info = rest.get_weights_info_by_tinker_path(&path);
    let info = ctx.ask("find the model of the checkpoint", info).await?;
    Ok(info.base_model)
}

/// Finds a model of this machine.
fn here(name: &str) -> anyhow::Result<Wanted> {
    local_model::find(name)?.ok_or_else(|| {
        anyhow::anyhow!("`{name}` is not a model on this machine").context(Hint(
            "name its folder: `--model NAME=PATH`; `tinkrs models list` shows the names that are known",
        ))
    })
}

/// Says that the hosted service is used, and how to have this machine instead.
fn hosted(args: &ServerArgs, how: &str) -> String {
    let folder = args.data_dir();
    let instead = match folder.is_dir() {
        true => format!("; `--local` uses {} on this machine", folder.display()),
        false => String::new(),
    };
    format!("hosted Tinker, {how}{instead}")
}

/// A server, ready to be used.
pub(crate) struct Backend {
    pub(crate) service: ServiceClient,
    /// The server's name of the model.
    pub(crate) model: String,
    pub(crate) is_hosted: bool,
    /// Where the tokenizer is.
    tokenizer: Option<PathBuf>,
    local: Option<LocalServer>,
    /// What is here only for as long as the command runs.
    _files: Option<tempfile::TempDir>,
}

impl Backend {
    /// Opens the server, and says on stderr which one it is.
    pub(crate) async fn open(ctx: &context::Context, args: &BackendArgs) -> anyhow::Result<Self> {
        Self::open_with(ctx, args, None).await
    }

    /// Opens the server as [`open`](Self::open) does. A checkpoint says which model it is of.
    pub(crate) async fn open_for(
        ctx: &context::Context,
        args: &BackendArgs,
        checkpoint: Option<&CheckpointRef>,
    ) -> anyhow::Result<Self> {
        let (None, Some(checkpoint)) = (&args.model, checkpoint) else {
            return Self::open(ctx, args).await;
        };
        let kinds = [CheckpointKind::Sampler];
        let choice = args.server.choose(false, &Environment::read());
        let model = match &choice {
            Choice::Local => local_base(ctx, &args.server, checkpoint, &kinds).await?,
            Choice::Url(url) => {
                let ctx = ctx.on(Target::Url(url.clone()));
                base_of(&ctx, checkpoint, &kinds).await?
            }
            Choice::Hosted => base_of(ctx, checkpoint, &kinds).await?,
        };
        let args = BackendArgs {
            model: Some(model),
            server: args.server.pinned(&choice),
        };
        Self::open(ctx, &args).await
    }

    /// Opens the server as [`open_with`](Self::open_with) does, with the model of a checkpoint to train on. Also
    /// returns the path of the checkpoint.
    pub(crate) async fn open_from(
        ctx: &context::Context,
        args: &BackendArgs,
        checkpoint: &CheckpointRef,
        besides: Option<Wanted>,
    ) -> anyhow::Result<(Self, TinkerPath)> {
        let kinds = [CheckpointKind::Training];
        let wanted = args.model.as_deref().map(local_model::find).transpose()?;
        let wanted = wanted.flatten();
        let choice = args.server.choose(wanted.is_some(), &Environment::read());
        let base = match &choice {
            Choice::Local => local_base(ctx, &args.server, checkpoint, &kinds).await?,
            Choice::Url(url) => {
                let ctx = ctx.on(Target::Url(url.clone()));
                base_of(&ctx, checkpoint, &kinds).await?
            }
            Choice::Hosted => base_of(ctx, checkpoint, &kinds).await?,
        };
        let given = wanted.as_ref().map(Wanted::name).or(args.model.as_deref());
        if let Some(given) = given.filter(|given| *given != base) {
            anyhow::bail!("model: {given}, but {checkpoint} was trained on {base}");
        }
        let args = BackendArgs {
            model: args.model.clone().or(Some(base)),
            server: args.server.pinned(&choice),
        };
        let backend = Self::open_with(ctx, &args, besides).await?;
        match backend.resolve_as(checkpoint, &kinds).await {
            Ok(path) => Ok((backend, path)),
            Err(error) => backend.end(Err(error)).await,
        }
    }

    /// Finds the path of a checkpoint to sample from.
    pub(crate) async fn resolve(&self, checkpoint: &CheckpointRef) -> anyhow::Result<TinkerPath> {
        self.resolve_as(checkpoint, &[CheckpointKind::Sampler])
            .await
    }

    /// Finds the path of a checkpoint of one of these kinds, the best one first.
    pub(crate) async fn resolve_as(
        &self,
        checkpoint: &CheckpointRef,
        kinds: &[CheckpointKind],
    ) -> anyhow::Result<TinkerPath> {
        let rest = self.service.create_rest_client();
        let path = rest.resolve_checkpoint(checkpoint, kinds).await;
        path.map_err(|error| hint::explain(error, "could not find the checkpoint".to_owned()))
    }

    /// Opens this machine with the built-in model, whatever the environment says.
    pub(crate) async fn open_here(
        ctx: &context::Context,
        data_dir: PathBuf,
    ) -> anyhow::Result<Self> {
        let args = BackendArgs {
            server: ServerArgs::at(data_dir),
            ..BackendArgs::default()
        };
        Self::open(ctx, &args).await
    }

    /// Opens the server as [`open`](Self::open) does. This machine has another model besides.
    pub(crate) async fn open_with(
        ctx: &context::Context,
        args: &BackendArgs,
        besides: Option<Wanted>,
    ) -> anyhow::Result<Self> {
        let wanted = local_model::find(args.model())?;
        let model = wanted.as_ref().map_or(args.model(), Wanted::name);
        let model = model.to_owned();
        match args.server.choose(wanted.is_some(), &Environment::read()) {
            Choice::Url(url) => {
                let files = tempfile::tempdir().context("could not make a folder")?;
                output::note(format_args!("server: {url}, model {model}"));
                Ok(Self {
                    service: Target::Url(url.clone()).client().build(),
                    model,
                    is_hosted: tinkrs::server_url::is_hosted(&url),
                    tokenizer: match &wanted {
                        Some(Wanted::At(named)) => Some(named.path.clone()),
                        Some(Wanted::BuiltIn) => Some(local_model::nano(files.path())?.path),
                        None => None,
                    },
                    local: None,
                    _files: Some(files),
                })
            }
            Choice::Hosted => {
                output::note(hosted(
                    &args.server,
                    &format!("billed to your key: model {model}"),
                ));
                Ok(Self {
                    service: Target::Environment.client().build(),
                    model,
                    is_hosted: true,
                    tokenizer: None,
                    local: None,
                    _files: None,
                })
            }
            Choice::Local => Self::open_local(ctx, args, besides).await,
        }
    }

    async fn open_local(
        ctx: &context::Context,
        args: &BackendArgs,
        besides: Option<Wanted>,
    ) -> anyhow::Result<Self> {
        let data = args.server.data_dir();
        let wanted = here(args.model())?;
        keep_private(data)?;
        let named = wanted.place(data)?;
        let mut models = vec![named.clone()];
        if let Some(other) = besides.filter(|other| other.name() != named.name) {
            models.push(other.place(data)?);
        }
        let local = open_local(ctx, &args.server, &models).await?;
        output::note(format_args!(
            "local: {} on this machine, free of charge{}",
            named.name,
            local.through()
        ));
        Ok(Self {
            service: local.target().client().build(),
            model: named.name,
            is_hosted: false,
            tokenizer: Some(named.path),
            local: Some(local),
            _files: None,
        })
    }

    /// Whether the server is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Returns the requests that come for a sampler from now on, if the server is in this process.
    pub(crate) fn watch_session(&self, sampler: &SamplingClient) -> Option<SessionWatch> {
        let local = self.local.as_ref()?;
        local.watch_session(sampler.sampling_session_id().clone())
    }

    /// Returns the way the model's conversations are written.
    pub(crate) fn renderer(&self) -> anyhow::Result<Renderer> {
        let renderer = match &self.tokenizer {
            Some(path) => {
                let source = local_model::tokenizer_source(path);
                Renderer::from_path(source.as_ref().unwrap_or(path))
            }
            None => {
                let source = TokenizerSource::new(&self.model);
                let tokenizer = source.on_progress(download_note(&self.model)).load();
                let tokenizer = tokenizer.context("could not load the model's tokenizer")?;
                Renderer::of_model(&self.model, tokenizer)
            }
        };
        renderer.with_context(|| format!("could not find the chat format of `{}`", self.model))
    }

    /// Does something with the server until it is done or the user presses Ctrl-C, and ends the session as
    /// that ended.
    pub(crate) async fn until_ctrl_c<T>(
        self,
        ctx: &context::Context,
        work: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let result = ending::in_session(ctx, &self.service, work(&self)).await;
        self.stop(result).await
    }

    /// Ends the session as a command ended that listens for Ctrl-C itself.
    pub(crate) async fn end<T>(self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        Ending::of(&result).tell(&self.service).await;
        self.stop(result).await
    }

    /// Ends a server in this process, after everything is stored.
    async fn stop<T>(self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let has_failed = Ending::of(&result).reason == FinishReason::Errored;
        let stopped = match self.local {
            Some(local) => local.stop().await,
            None => Ok(()),
        };
        match stopped {
            // What the command has to say comes first.
            Err(error) if !has_failed => Err(error),
            _ => result,
        }
    }
}

/// Says once that the tokenizer is downloaded, which can take a while.
fn download_note(model: &str) -> OnProgress {
    let note = format!("downloading the tokenizer of {model} from the Hugging Face Hub");
    let once = Once::new();
    Arc::new(move |_| once.call_once(|| output::note(&note)))
}
