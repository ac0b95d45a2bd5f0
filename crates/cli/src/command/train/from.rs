//! What a run starts from: a checkpoint, an adapter that was made elsewhere, or a whole model.

use std::path::{Path, PathBuf};
use std::pin::pin;

use anyhow::{Context as _, anyhow, bail, ensure};
use futures_util::StreamExt;
use ring::digest::{SHA256, digest};
use serde_json::Value;
use tinkrs::{CheckpointKind, CheckpointRef, TinkerPath};
use tinkrs_recipes::run::Start;
use tinkrs_wire::text::hex;

use super::options::RunArgs;
use crate::backend::{Backend, BackendArgs};
use crate::command::checkpoint::import;
use crate::context::Context;
use crate::hint;
use crate::local_model::{self, Wanted};
use crate::other_model::{checkpoint, not_a_start};
use crate::output::{Hint, note};

/// What a run starts from, if it is not a model that is named.
#[derive(Debug, PartialEq)]
pub(super) enum From {
    /// A checkpoint of the server.
    Checkpoint(CheckpointRef),
    /// A folder that `peft` wrote.
    Adapter(String),
    /// A folder or file with a whole model.
    Model(String),
}

impl RunArgs {
    /// Returns what the run starts from, if that is said.
    pub(super) fn from(&self) -> anyhow::Result<Option<From>> {
        let Some(from) = &self.from else {
            ensure!(
                !self.from_optimizer,
                "--from-optimizer: it needs a checkpoint, `--from CHECKPOINT`"
            );
            return Ok(None);
        };
        let (path, what) = (Path::new(from), from.clone());
        let has = |name| path.join(name).is_file();
        let found = if has("journal.jsonl") {
            From::Checkpoint(checkpoint(from, "--from")?)
        } else if has("adapter_config.json") {
            From::Adapter(what)
        } else if has("config.json") || (local_model::is_gguf(path) && path.is_file()) {
            From::Model(what)
        } else if path.is_dir() && from.parse::<CheckpointRef>().is_err() {
            bail!("--from: {}", not_a_start(from));
        } else {
            From::Checkpoint(checkpoint(from, "--from")?)
        };
        match &found {
            From::Checkpoint(checkpoint) => {
                let kind = checkpoint.path().map(TinkerPath::kind);
                if kind.is_some_and(|kind| kind != CheckpointKind::Training) {
                    let problem =
                        anyhow!("--from: {checkpoint} is for sampling, expected one to train on");
                    return Err(problem.context(Hint(
                        "name the run or its folder, or one of the kind `weights` that `tinkrs checkpoint list` shows",
                    )));
                }
            }
            From::Adapter(_) | From::Model(_) => ensure!(
                !self.from_optimizer,
                "--from-optimizer: `{from}` has no optimizer, only checkpoints of runs do"
            ),
        }
        Ok(Some(found))
    }
}

/// Opens the server for a run, with what it starts from. `besides` are models that the server must have, too.
pub(super) async fn open(
    ctx: &Context,
    args: &RunArgs,
    from: Option<From>,
    besides: Vec<Wanted>,
) -> anyhow::Result<(Backend, Option<Start>)> {
    match from {
        None | Some(From::Model(_)) => {
            let backend = Backend::open_with(ctx, &args.backend, besides).await?;
            Ok((backend, None))
        }
        Some(From::Checkpoint(checkpoint)) => {
            let open = Backend::open_from(ctx, &args.backend, &checkpoint, besides);
            let (backend, path) = open.await?;
            let with_optimizer = args.from_optimizer;
            let start = Start {
                path,
                with_optimizer,
            };
            Ok((backend, Some(start)))
        }
        Some(From::Adapter(folder)) => {
            let model = model_of_adapter(Path::new(&folder), &args.backend)?;
            let backend = args.backend.with_model(model);
            let backend = Backend::open_with(ctx, &backend, besides).await?;
            match import_adapter(&backend, Path::new(&folder), args.run_dir()?).await {
                Ok(path) => {
                    let with_optimizer = false;
                    let start = Start {
                        path,
                        with_optimizer,
                    };
                    Ok((backend, Some(start)))
                }
                Err(error) => backend.end(Err(error)).await,
            }
        }
    }
}

/// Returns the options of a run that starts from a whole model: as if the model had been named.
pub(super) fn with_model(args: &RunArgs, path: &str) -> anyhow::Result<RunArgs> {
    let backend = &args.backend;
    let named = backend.named_model();
    if let Some(given) = named.filter(|given| given.contains('=')) {
        bail!("--model: {given}, but `--from {path}` is a whole model, too: name one of them");
    }
    if backend.on_this_machine_with_model()?.is_none() {
        let problem = anyhow!("--from: `{path}` is a whole model, and the server is elsewhere");
        return Err(problem.context(Hint(
            "start from it on this machine with `--local`, or serve it there: `tinkrs serve --model NAME=PATH`",
        )));
    }
    let absolute = std::path::absolute(path).with_context(|| format!("could not find {path}"))?;
    let name = match named {
        Some(name) if is_another(backend, name, &absolute)? => {
            let problem = anyhow!("--model: {name} is another model than the one in {path}");
            return Err(problem.context(Hint(
                "`--from` with the folder of a model needs no `--model`; one gives it a name, which must be new",
            )));
        }
        Some(name) => name.to_owned(),
        None => {
            let name = name_of_model(&absolute, backend)?;
            note(format_args!(
                "from: the model in {path}, called `{name}` here"
            ));
            name
        }
    };
    let mut args = args.clone();
    args.backend = backend.with_model(format!("{name}={path}"));
    Ok(args)
}

/// Makes up a name for a model: that of its folder, unless another model has it.
fn name_of_model(path: &Path, backend: &BackendArgs) -> anyhow::Result<String> {
    let stem = if local_model::is_gguf(path) {
        path.file_stem()
    } else {
        path.file_name()
    };
    let stem = stem.map_or("model".into(), |stem| stem.to_string_lossy());
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = stem
        .chars()
        .map(|c| if allowed(c) { c } else { '-' })
        .collect();
    if is_another(backend, &name, path)? {
        let mark = digest(&SHA256, canonical(path).to_string_lossy().as_bytes());
        return Ok(format!("{name}-{}", hex(&mark.as_ref()[..4])));
    }
    Ok(name)
}

/// Whether a model has this name that is not the one at a path.
fn is_another(backend: &BackendArgs, name: &str, path: &Path) -> anyhow::Result<bool> {
    Ok(match backend.known_model(name)? {
        None => false,
        Some(Wanted::BuiltIn) => true,
        Some(Wanted::At(model)) => canonical(&model.path) != canonical(path),
    })
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Finds which model an adapter is for: the one that is named, else the one that the adapter names.
fn model_of_adapter(folder: &Path, args: &BackendArgs) -> anyhow::Result<String> {
    let path = folder.join("adapter_config.json");
    let config =
        std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
    let config: Value = serde_json::from_slice(&config)
        .with_context(|| format!("--from: {} is not JSON", path.display()))?;
    let base = config["base_model_name_or_path"].as_str();
    let base = base.filter(|base| !base.is_empty());
    let named = args.named_model();
    match (named, base) {
        (Some(named), base) => {
            let name = named.split('=').next().unwrap_or(named);
            if let Some(base) = base.filter(|base| *base != name) {
                note(format_args!(
                    "the adapter says that it was trained on {base}; it is taken for one of {name}"
                ));
            }
            Ok(named.to_owned())
        }
        (None, Some(base)) => {
            let known = args.known_model(base)?;
            if known.is_none() && args.on_this_machine()?.is_some() {
                let problem = anyhow!(
                    "--from: `{}` is an adapter of `{base}`, which is not a model on this machine",
                    folder.display()
                );
                return Err(problem.context(Hint("say where it is: `--model NAME=PATH`")));
            }
            Ok(match known {
                Some(Wanted::At(model)) => format!("{base}={}", model.path.display()),
                _ => base.to_owned(),
            })
        }
        (None, None) => {
            let problem = anyhow!(
                "--from: `{}` is an adapter that does not say which model it is for",
                folder.display()
            );
            Err(problem.context(Hint("name the model with `--model`")))
        }
    }
}

/// Gives an adapter to the server, unless it has it from before, and returns the checkpoint to train on.
async fn import_adapter(
    backend: &Backend,
    folder: &Path,
    run_dir: &Path,
) -> anyhow::Result<TinkerPath> {
    let archive = import::pack(folder)?;
    // The name says which adapter of which model it is, so that it is found again.
    let content = [backend.model.as_bytes(), b"\0", &archive].concat();
    let name = format!("adapter-{}", hex(&digest(&SHA256, &content).as_ref()[..8]));
    drop(content);
    let journal = super::journal(run_dir)?;
    let began_with = journal.and_then(|journal| journal.plan()?.from.clone());
    if let Some(start) = began_with.filter(|start| start.path.name() == name) {
        return Ok(start.path);
    }
    let rest = backend.service.create_rest_client();
    let mut known = pin!(rest.all_user_checkpoints());
    while let Some(known) = known.next().await {
        let known =
            known.map_err(|error| hint::explain(error, "could not list checkpoints".to_owned()))?;
        let path = known.tinker_path;
        if path.kind() == CheckpointKind::Training && path.name() == name {
            return Ok(path);
        }
    }
    let imported = rest
        .import_weights(&backend.model, Some(&name), archive)
        .await;
    let imported = imported.map_err(|error| match error.status() {
        Some(404 | 405 | 501) => anyhow!(error)
            .context(format!(
                "--from: this server takes no adapters, so not {}",
                folder.display()
            ))
            .context(Hint(
                "`tinkrs serve` and this machine (`--local`) take them",
            )),
        _ => hint::explain(
            error,
            format!(
                "--from: the adapter in {} could not be used with {}",
                folder.display(),
                backend.model
            ),
        ),
    })?;
    note(format_args!(
        "from: the adapter in {}, now {}",
        folder.display(),
        imported.tinker_path
    ));
    Ok(imported.tinker_path)
}
