//! Where a command runs: on a server inside this process, or on another one.

use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tinkrs::auth::{AuthError, CredentialPolicy, resolve_from_env};
use tinkrs::{SamplingClient, ServiceClient, TokenizerSource};
use tinkrs_chat::Renderer;
use tinkrs_server::SessionWatch;

use crate::local::LocalServer;
use crate::local_model::{self, Wanted};
use crate::output::{self, Hint};

/// Which server and which model to use
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct BackendArgs {
    /// Model: a name that `tinkrs models list` or the server has, or NAME=PATH for a Hugging Face folder
    /// or GGUF file on this machine
    #[arg(long, value_name = "MODEL", default_value = tinkrs_nano::NAME)]
    model: String,

    /// Use a server inside this process, even if TINKER_BASE_URL or a key is set
    #[arg(long, conflicts_with = "base_url")]
    local: bool,

    /// Use the server at this URL. Without it, the one of TINKER_BASE_URL; without that, the hosted
    /// service if there is a key and the model is not on this machine, else a server inside this process
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,

    /// Folder for what a server inside this process keeps
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
}

/// Where a server on this machine keeps everything, unless another folder is named.
pub(crate) const DATA_DIR: &str = "tinkrs-data";

impl Default for BackendArgs {
    fn default() -> Self {
        Self {
            model: tinkrs_nano::NAME.to_owned(),
            local: false,
            base_url: None,
            data_dir: PathBuf::from(DATA_DIR),
        }
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
    local: Option<LocalServer>,
    /// What is here only for as long as the command runs.
    _files: Option<tempfile::TempDir>,
}

/// Which server was asked for, as far as the arguments and the environment say.
#[derive(Debug, PartialEq)]
enum Choice {
    Local,
    Url(String),
    Hosted,
}

/// Decides on a server: what was asked for, else hosted if there is a key for it, else this machine.
fn choose(
    args: &BackendArgs,
    is_local_model: bool,
    env_url: Option<String>,
    has_key: bool,
) -> Choice {
    match (&args.base_url, env_url) {
        (Some(url), _) => Choice::Url(url.clone()),
        _ if args.local => Choice::Local,
        (None, Some(url)) => Choice::Url(url),
        (None, None) if has_key && !is_local_model => Choice::Hosted,
        (None, None) => Choice::Local,
    }
}

impl Backend {
    /// Opens the server, and says on stderr which one it is.
    pub(crate) async fn open(args: &BackendArgs) -> anyhow::Result<Self> {
        Self::open_with(args, None).await
    }

    /// Opens a server inside this process with the built-in model, whatever the environment says.
    pub(crate) async fn open_here(data_dir: PathBuf) -> anyhow::Result<Self> {
        let args = BackendArgs {
            local: true,
            data_dir,
            ..BackendArgs::default()
        };
        Self::open(&args).await
    }

    /// Opens the server as [`open`](Self::open) does. One in this process has another model besides.
    pub(crate) async fn open_with(
        args: &BackendArgs,
        besides: Option<Wanted>,
    ) -> anyhow::Result<Self> {
        let env_url = std::env::var("TINKER_BASE_URL").ok();
        let env_url = env_url.filter(|url| !url.is_empty());
        // One that is no use is still meant to be used: the client says what is wrong with it.
        let credential = resolve_from_env(None, CredentialPolicy::Any);
        let has_key = !matches!(credential, Err(AuthError::Missing | AuthError::NoHome));
        let wanted = local_model::find(&args.model)?;
        let model = wanted.as_ref().map_or(args.model.as_str(), Wanted::name);
        let model = model.to_owned();
        match choose(args, wanted.is_some(), env_url, has_key) {
            Choice::Url(url) => {
                let files = tempfile::tempdir().context("could not make a folder")?;
                output::note(format_args!("server: {url}, model {model}"));
                Ok(Self {
                    service: ServiceClient::builder()
                        .base_url(&url)
                        .on_retry(output::retry_notes())
                        .build(),
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
                output::note(format_args!(
                    "hosted Tinker, billed to your key: model {model}"
                ));
                Ok(Self {
                    service: ServiceClient::builder()
                        .on_retry(output::retry_notes())
                        .build(),
                    model,
                    is_hosted: true,
                    tokenizer: None,
                    local: None,
                    _files: None,
                })
            }
            Choice::Local => Self::open_local(args, wanted, besides).await,
        }
    }

    async fn open_local(
        args: &BackendArgs,
        wanted: Option<Wanted>,
        besides: Option<Wanted>,
    ) -> anyhow::Result<Self> {
        let data = &args.data_dir;
        let wanted = wanted.ok_or_else(|| {
            anyhow::anyhow!("`{}` is not a model on this machine", args.model).context(Hint(
                "name its folder: `--model NAME=PATH`; `tinkrs models list` shows the names that are known",
            ))
        })?;
        let named = wanted.place(data)?;
        output::note(format_args!(
            "local: {} on this machine, free of charge",
            named.name
        ));
        let mut models = vec![named.clone()];
        if let Some(other) = besides.filter(|other| other.name() != named.name) {
            models.push(other.place(data)?);
        }
        let local = LocalServer::start(&models, data).await?;
        Ok(Self {
            service: local.service(),
            model: named.name,
            is_hosted: false,
            tokenizer: Some(named.path),
            local: Some(local),
            _files: None,
        })
    }

    /// Returns the requests that come for a sampler from now on, if the server is in this process.
    pub(crate) fn watch_session(&self, sampler: &SamplingClient) -> Option<SessionWatch> {
        let local = self.local.as_ref()?;
        Some(local.watch_session(sampler.sampling_session_id().clone()))
    }

    /// Returns the way the model's conversations are written.
    pub(crate) fn renderer(&self) -> anyhow::Result<Renderer> {
        let renderer = match &self.tokenizer {
            Some(path) => {
                let source = local_model::tokenizer_source(path);
                Renderer::from_path(source.as_ref().unwrap_or(path))
            }
            None => {
                let tokenizer = TokenizerSource::new(&self.model).load();
                let tokenizer = tokenizer.context("could not load the model's tokenizer")?;
                Renderer::of_model(&self.model, tokenizer)
            }
        };
        renderer.with_context(|| format!("could not find the chat format of `{}`", self.model))
    }

    /// Ends a server in this process, after everything is stored.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        match self.local {
            Some(local) => local.stop().await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(model: &str, local: bool, base_url: Option<&str>) -> BackendArgs {
        BackendArgs {
            model: model.to_owned(),
            local,
            base_url: base_url.map(str::to_owned),
            ..BackendArgs::default()
        }
    }

    #[test]
    fn nobody_is_billed_by_surprise() {
        let url = || Some("http://a".to_owned());
        let chosen = Choice::Url("http://a".to_owned());
        let args = |local, base_url: Option<&str>| args("m", local, base_url);
        let plain = args(false, None);
        assert_eq!(choose(&plain, false, None, true), Choice::Hosted);
        assert_eq!(choose(&plain, false, None, false), Choice::Local);
        assert_eq!(choose(&args(true, None), false, url(), true), Choice::Local);
        assert_eq!(choose(&plain, false, url(), true), chosen);
        let named = args(false, Some("http://a"));
        assert_eq!(choose(&named, false, None, true), chosen);
        // A model that is here is used here, even if the hosted service has one of the same name.
        assert_eq!(choose(&plain, true, None, true), Choice::Local);
    }
}
