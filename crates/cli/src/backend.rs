//! Where a command runs that uses a model: on this machine, or on another server.

use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tinkrs::{
    CheckpointKind, CheckpointRef, FinishReason, SamplingClient, ServiceClient, TinkerPath,
};
use tinkrs_chat::Renderer;
use tinkrs_recipes::known_hidden_size;
use tinkrs_recipes::run::sampler_of;
use tinkrs_server::SessionWatch;

use crate::chat_format;
use crate::context;
use crate::data_folder;
use crate::ending::{self, Ending};
use crate::hint;
use crate::local::{LocalServer, PassSize};
use crate::local_model::{self, NamedModel, NumericsArgs, Wanted};
use crate::output::{self, Hint};
use crate::remote_tokenizer;
use crate::server_args::{Choice, Environment, ServerArgs, Target, quoted};

/// What can be sampled from, the best first: what was saved for it, else the weights of a run that goes on.
const TO_SAMPLE: [CheckpointKind; 2] = [CheckpointKind::Sampler, CheckpointKind::Training];

/// Which server and which model to use
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct BackendArgs {
    /// Model: a name that `tinkrs models list` or the server has, or NAME=PATH for a Hugging Face folder
    /// or GGUF file on this machine. Default: that of the checkpoint, if one is named, else tinkrs/nano
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,

    /// Chat format: a Jinja file, a name such as `qwen3_5_disable_thinking`, or `auto`: the template of the
    /// model's folder, else what its name says
    #[arg(long, value_name = "FILE|NAME|auto")]
    template: Option<String>,

    #[command(flatten)]
    #[serde(flatten)]
    numerics: NumericsArgs,

    #[command(flatten)]
    #[serde(flatten)]
    server: ServerArgs,
}

impl BackendArgs {
    /// Returns what to type next for a run that has ended: commands that work as they are.
    pub(crate) fn next_commands(&self, is_local: bool, run: &str) -> Vec<String> {
        if !is_local {
            let server = self.server.typed_for_url();
            return vec![format!("tinkrs chat --checkpoint {run}{server}")];
        }
        let server = self.server.typed_for_local(&Environment::read());
        let data = self.server.typed_for_local(&Environment::default());
        // Others find the model by what they are given; a server has to be told what to serve.
        let served = match &self.model {
            Some(model) if model != tinkrs_nano::NAME => format!(" --model {}", quoted(model)),
            _ => String::new(),
        };
        vec![
            format!("tinkrs chat --checkpoint {run}{server}"),
            format!("tinkrs serve{served}{data}"),
            format!("tinkrs export {run} --format merged --to {run}-merged{server}"),
        ]
    }

    /// Returns which data folder is meant, if this machine is.
    pub(crate) fn on_this_machine(&self) -> anyhow::Result<Option<&ServerArgs>> {
        let names_local_model = local_model::find(self.model())?.is_some();
        let choice = self.server.choose(names_local_model, &Environment::read());
        Ok((choice == Choice::Local).then_some(&self.server))
    }

    /// Returns the URL of the server that was typed.
    pub(crate) fn base_url(&self) -> Option<&str> {
        self.server.base_url()
    }

    /// Returns the model that was typed.
    pub(crate) fn named_model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Returns the same options with another model.
    pub(crate) fn with_model(&self, model: String) -> Self {
        Self {
            model: Some(model),
            ..self.clone()
        }
    }

    /// Returns which data folder is meant if a model of this machine is named, unless a server elsewhere is.
    pub(crate) fn on_this_machine_with_model(&self) -> anyhow::Result<Option<&ServerArgs>> {
        let choice = self.server.choose(true, &Environment::read());
        Ok((choice == Choice::Local).then_some(&self.server))
    }

    /// Finds a model of this machine by its name: one that was used in the data folder, or any other.
    pub(crate) fn known_model(&self, name: &str) -> anyhow::Result<Option<Wanted>> {
        Ok(data_folder::find_base(self.server.data_dir(), name).ok())
    }

    /// Returns the chat format that was typed.
    pub(crate) fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(tinkrs_nano::NAME)
    }
}

/// Opens a folder of this machine with some models. The command ends if another process serves the folder
/// and is gone.
pub(crate) async fn open_local(
    ctx: &context::Context,
    args: &ServerArgs,
    models: &[NamedModel],
) -> anyhow::Result<LocalServer> {
    let local = LocalServer::open(args.data_dir(), models, ctx.command()).await?;
    if let LocalServer::Joined { .. } = &local {
        ctx.fail_when(local.lost());
    }
    Ok(local)
}

/// Says that the hosted service is used, and how to have this machine instead.
pub(crate) fn hosted(args: &ServerArgs, how: &str) -> String {
    let folder = args.data_dir();
    let instead = if folder.is_dir() {
        format!("; `--local` uses {} on this machine", folder.display())
    } else {
        String::new()
    };
    format!("hosted Tinker, {how}{instead}")
}

/// Asks the server that was chosen which model a checkpoint was trained on.
async fn base_of(
    ctx: &context::Context,
    args: &ServerArgs,
    choice: &Choice,
    checkpoint: &CheckpointRef,
    kinds: &[CheckpointKind],
) -> anyhow::Result<String> {
    match choice {
        Choice::Local => data_folder::base_of(ctx, args, checkpoint, kinds).await,
        Choice::Url(url) => {
            let ctx = ctx.on(Target::Url(url.clone()));
            data_folder::base_on(&ctx, checkpoint, kinds).await
        }
        Choice::Hosted => data_folder::base_on(ctx, checkpoint, kinds).await,
    }
}

/// Finds the model that a checkpoint was trained on. Another server has it, whether it is here or not.
fn base_here(args: &ServerArgs, choice: &Choice, base: &str) -> anyhow::Result<Option<Wanted>> {
    match choice {
        Choice::Local => data_folder::find_base(args.data_dir(), base).map(Some),
        Choice::Url(_) | Choice::Hosted => local_model::find(base),
    }
}

/// A server, ready to be used.
pub(crate) struct Backend {
    pub(crate) service: ServiceClient,
    /// The server's name of the model.
    pub(crate) model: String,
    pub(crate) is_hosted: bool,
    /// Where the tokenizer is.
    tokenizer: Option<PathBuf>,
    /// Which chat format was asked for.
    template: Option<String>,
    local: Option<LocalServer>,
    /// What is here only for as long as the command runs.
    _files: Option<tempfile::TempDir>,
}

impl Backend {
    /// Opens the server, and says on stderr which one it is.
    pub(crate) async fn open(ctx: &context::Context, args: &BackendArgs) -> anyhow::Result<Self> {
        Self::open_with(ctx, args, Vec::new()).await
    }

    /// Opens the server as [`open_with`](Self::open_with) does. A checkpoint says which model it is of.
    pub(crate) async fn open_for(
        ctx: &context::Context,
        args: &BackendArgs,
        checkpoint: Option<&CheckpointRef>,
        besides: Vec<Wanted>,
    ) -> anyhow::Result<Self> {
        let (None, Some(checkpoint)) = (&args.model, checkpoint) else {
            return Self::open_with(ctx, args, besides).await;
        };
        let choice = args.server.choose(false, &Environment::read());
        let base = base_of(ctx, &args.server, &choice, checkpoint, &TO_SAMPLE).await?;
        let wanted = base_here(&args.server, &choice, &base)?;
        let backend = Self::open_chosen(ctx, args, choice, base, wanted, besides).await?;
        Ok(backend.writing_as(args))
    }

    /// Sets the chat format that was asked for.
    fn writing_as(mut self, args: &BackendArgs) -> Self {
        self.template = args.template.clone();
        self
    }

    /// Opens the server as [`open_with`](Self::open_with) does, with the model of a checkpoint to train on. Also
    /// returns the path of the checkpoint.
    pub(crate) async fn open_from(
        ctx: &context::Context,
        args: &BackendArgs,
        checkpoint: &CheckpointRef,
        besides: Vec<Wanted>,
    ) -> anyhow::Result<(Self, TinkerPath)> {
        let kinds = [CheckpointKind::Training];
        let wanted = args.model.as_deref().map(local_model::find).transpose()?;
        let wanted = wanted.flatten();
        let choice = args.server.choose(wanted.is_some(), &Environment::read());
        let base = base_of(ctx, &args.server, &choice, checkpoint, &kinds).await?;
        let given = wanted.as_ref().map(Wanted::name).or(args.model.as_deref());
        if let Some(given) = given.filter(|given| *given != base) {
            anyhow::bail!("--model: {given}, but {checkpoint} was trained on {base}");
        }
        let wanted = match wanted {
            Some(wanted) => Some(wanted),
            None => base_here(&args.server, &choice, &base)?,
        };
        let backend = Self::open_chosen(ctx, args, choice, base, wanted, besides).await?;
        let backend = backend.writing_as(args);
        match backend.resolve_as(checkpoint, &kinds).await {
            Ok(path) => Ok((backend, path)),
            Err(error) => backend.end(Err(error)).await,
        }
    }

    /// Finds the path of a checkpoint of one of these kinds, the best one first.
    pub(crate) async fn resolve_as(
        &self,
        checkpoint: &CheckpointRef,
        kinds: &[CheckpointKind],
    ) -> anyhow::Result<TinkerPath> {
        let rest = self.service.create_rest_client();
        let path = rest.resolve_checkpoint(checkpoint, kinds).await;
        path.map_err(|error| hint::no_checkpoint(error, checkpoint))
    }

    /// Opens a checkpoint to sample from. Weights that were saved for training alone are loaded for that first.
    pub(crate) async fn sampler(
        &self,
        checkpoint: &CheckpointRef,
    ) -> anyhow::Result<SamplingClient> {
        let path = self.resolve_as(checkpoint, &TO_SAMPLE).await?;
        if path.kind() == CheckpointKind::Training {
            output::note(format_args!("sampling from the training checkpoint {path}"));
        }
        let sampler = sampler_of(&self.service, &path).await;
        sampler.map_err(|error| match error {
            tinkrs_recipes::Error::Client(error) => {
                hint::explain(error, "could not open the model".to_owned())
            }
            error => error.into(),
        })
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

    /// Opens the server as [`open`](Self::open) does. This machine has other models besides.
    pub(crate) async fn open_with(
        ctx: &context::Context,
        args: &BackendArgs,
        besides: Vec<Wanted>,
    ) -> anyhow::Result<Self> {
        let wanted = local_model::find(args.model())?;
        let model = wanted.as_ref().map_or(args.model(), Wanted::name);
        let model = model.to_owned();
        let choice = args.server.choose(wanted.is_some(), &Environment::read());
        let opened = Self::open_chosen(ctx, args, choice, model, wanted, besides).await?;
        Ok(opened.writing_as(args))
    }

    /// Opens a server that was chosen. `wanted` is where the model is, if it is on this machine.
    async fn open_chosen(
        ctx: &context::Context,
        args: &BackendArgs,
        choice: Choice,
        model: String,
        wanted: Option<Wanted>,
        besides: Vec<Wanted>,
    ) -> anyhow::Result<Self> {
        if choice != Choice::Local && !args.numerics.is_empty() {
            let problem = anyhow::anyhow!(
                "{} is for models of this machine, and this one is on another server",
                args.numerics.typed().trim()
            );
            return Err(problem.context(Hint("leave it out, or name a model of this machine")));
        }
        match choice {
            Choice::Url(url) => {
                let files = tempfile::tempdir().context("could not make a folder")?;
                output::note(format_args!("server: {url}, model {model}"));
                let service = Target::Url(url.clone()).client().build();
                let tokenizer = match &wanted {
                    Some(Wanted::At(named)) => Some(named.path.clone()),
                    Some(Wanted::BuiltIn) => Some(local_model::nano(files.path())?.path),
                    None => remote_tokenizer::fetch(&service, &model, files.path()).await?,
                };
                Ok(Self {
                    service,
                    model,
                    is_hosted: tinkrs::server_url::is_hosted(&url),
                    tokenizer,
                    template: None,
                    local: None,
                    _files: Some(files),
                })
            }
            Choice::Hosted => {
                let how = format!("billed to your key: model {model}");
                output::note(hosted(&args.server, &how));
                Ok(Self {
                    service: Target::Environment.client().build(),
                    model,
                    is_hosted: true,
                    tokenizer: None,
                    template: None,
                    local: None,
                    _files: None,
                })
            }
            Choice::Local => {
                let wanted = match wanted {
                    Some(wanted) => wanted,
                    None => data_folder::find(&model)?,
                };
                Self::open_local(ctx, args, wanted, besides).await
            }
        }
    }

    async fn open_local(
        ctx: &context::Context,
        args: &BackendArgs,
        wanted: Wanted,
        besides: Vec<Wanted>,
    ) -> anyhow::Result<Self> {
        let data = args.server.data_dir();
        let _prepared = data_folder::prepare(data)?;
        let place =
            |wanted: Wanted| Ok::<_, anyhow::Error>(wanted.place(data)?.held_as(args.numerics));
        let named = place(wanted)?;
        let mut models = vec![named.clone()];
        for other in besides {
            if models.iter().all(|model| model.name != other.name()) {
                models.push(place(other)?);
            }
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
            template: None,
            local: Some(local),
            _files: None,
        })
    }

    /// Whether the server is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Returns the width of the model, where that is known.
    pub(crate) fn hidden_size(&self) -> Option<usize> {
        let config = self
            .tokenizer
            .as_ref()
            .map(|folder| folder.join("config.json"));
        let text = config.and_then(|path| std::fs::read_to_string(path).ok());
        let config: Option<serde_json::Value> =
            text.and_then(|text| serde_json::from_str(&text).ok());
        let size = config.and_then(|config| {
            let places = ["/hidden_size", "/text_config/hidden_size"];
            places
                .iter()
                .find_map(|place| config.pointer(place)?.as_u64())
        });
        let size = size.and_then(|size| usize::try_from(size).ok());
        size.or_else(|| known_hidden_size(&self.model))
    }

    /// Returns the requests that come for a sampler from now on, if the server is in this process.
    pub(crate) fn watch_session(&self, sampler: &SamplingClient) -> Option<SessionWatch> {
        let local = self.local.as_ref()?;
        local.watch_session(sampler.sampling_session_id().clone())
    }

    /// Bounds the bytes that a run takes, if the server is in this process, and says how many it may take.
    pub(crate) fn training_bytes(&self, pass: &PassSize) -> Option<(u64, u64)> {
        self.local.as_ref()?.training_bytes(&self.model, pass)
    }

    /// Returns the way the model's conversations are written.
    pub(crate) fn renderer(&self) -> anyhow::Result<Renderer> {
        chat_format::renderer(
            &self.model,
            self.tokenizer.as_deref(),
            self.template.as_deref(),
        )
    }

    /// Returns the way the conversations of one of the server's models are written.
    pub(crate) async fn renderer_of(&self, model: &str) -> anyhow::Result<Renderer> {
        if model == self.model {
            return self.renderer();
        }
        // The renderer has read all of it when the folder goes.
        let files = tempfile::tempdir().context("could not make a folder")?;
        let folder = match local_model::find(model)? {
            Some(wanted) => Some(wanted.place(files.path())?.path),
            None if self.is_hosted => None,
            None => remote_tokenizer::fetch(&self.service, model, files.path()).await?,
        };
        chat_format::renderer(model, folder.as_deref(), None)
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
