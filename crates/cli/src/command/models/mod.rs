//! `tinkrs models`: the models on this machine.

mod hosted;
mod inspect;
mod pull;
mod remote;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Serialize;

use crate::context::Context;
use crate::human::{or_unknown, size};
use crate::local_model::NamedModel;
use crate::model_store::{self, ModelStore};
use crate::output::Hint;
use crate::table::Table;
use inspect::{Facts, inspect};

/// Manage model files on this machine (for what a server offers: `tinkrs model list`)
///
/// A model that was added or downloaded here has a name that `--model` takes: in `serve`, `train`, `eval`,
/// `sample` and `chat`. The names are kept in `~/.tinkrs/models.json` (or in the folder that TINKRS_HOME names).
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(ListArgs),
    Hosted(hosted::Args),
    Add(AddArgs),
    Remove(RemoveArgs),
    Pull(pull::Args),
}

/// List the models on this machine, and whether they can be used
///
/// Shows the built-in model, those that were added or pulled, and those that the Hugging Face Hub's own
/// tool has downloaded; of the last, `tinkrs models add NAME` makes one known.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {}

/// Give a model a name
///
/// Reads the model's configuration, the header of every file of weights and the tokenizer, and refuses what
/// cannot be used. The files stay where they are.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// The name, such as my-org/my-model
    name: String,

    /// A Hugging Face folder or a GGUF file. Default: what the Hub's own tool has downloaded under this name
    path: Option<PathBuf>,
}

/// Forget the name of a model
///
/// Deletes no files, except for those that `tinkrs models pull` downloaded, with `--delete`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The name
    name: String,

    /// Delete what `tinkrs models pull` downloaded
    #[arg(long)]
    delete: bool,
}

/// A model, and what is known of it.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    /// `built-in`, `added`, `pulled`, or `hub-cache` for one that has to be added first.
    source: &'static str,
    path: Option<PathBuf>,
    usable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(flatten)]
    facts: Option<Facts>,
}

#[derive(Debug, Serialize)]
struct Listing {
    models: Vec<Entry>,
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List(_) => list(ctx),
        Command::Hosted(args) => hosted::run(ctx, args),
        Command::Add(args) => add(ctx, args),
        Command::Remove(args) => remove(ctx, args),
        Command::Pull(args) => pull::run(ctx, args).await,
    }
}

fn list(ctx: &Context) -> anyhow::Result<()> {
    let listing = Listing { models: all()? };
    ctx.show(&listing, || table(&listing.models))
}

/// A model of this machine that a command can be given by name.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) size_bytes: Option<u64>,
    /// Why it cannot be used.
    pub(crate) problem: Option<String>,
}

/// Finds the models of this machine that commands can be given by name.
pub(crate) fn on_this_machine() -> anyhow::Result<Vec<Found>> {
    let models = all()?.into_iter();
    let named = models.filter(|model| model.source != "hub-cache");
    let found = named.map(|model| Found {
        name: model.name,
        size_bytes: model.facts.map(|facts| facts.size_bytes),
        problem: model.problem,
    });
    Ok(found.collect())
}

fn all() -> anyhow::Result<Vec<Entry>> {
    let store = ModelStore::open()?;
    let mut models = vec![built_in()?];
    for model in store.all() {
        let source = if store.is_download(&model.path) {
            "pulled"
        } else {
            "added"
        };
        models.push(entry(model, source));
    }
    for model in model_store::in_hub_cache() {
        if !models.iter().any(|known| known.name == model.name) {
            models.push(entry(model, "hub-cache"));
        }
    }
    Ok(models)
}

fn built_in() -> anyhow::Result<Entry> {
    let folder = tempfile::tempdir().context("could not make a folder")?;
    tinkrs_nano::write_to(folder.path()).context("could not unpack the built-in model")?;
    let model = NamedModel::new(tinkrs_nano::NAME, folder.path());
    Ok(Entry {
        path: None,
        ..entry(model, "built-in")
    })
}

fn entry(model: NamedModel, source: &'static str) -> Entry {
    let facts = inspect(&model.path);
    Entry {
        name: model.name,
        path: Some(model.path),
        source,
        usable: facts.is_ok(),
        problem: facts.as_ref().err().map(|error| format!("{error:#}")),
        facts: facts.ok(),
    }
}

fn table(models: &[Entry]) -> Table {
    let mut table = Table::new(["Model", "From", "Size", "Weights", "Form", "Usable"]);
    for model in models {
        let facts = model.facts.as_ref();
        let usable = match (&model.problem, facts) {
            (Some(problem), _) => format!("no: {problem}"),
            (
                None,
                Some(Facts {
                    note: Some(note), ..
                }),
            ) => format!("yes, but {note}"),
            (None, _) if model.source == "hub-cache" => {
                format!("after `tinkrs models add {}`", model.name)
            }
            (None, _) => "yes".to_owned(),
        };
        table.row([
            model.name.clone(),
            model.source.to_owned(),
            or_unknown(facts.map(|facts| size(facts.size_bytes))),
            or_unknown(facts.map(|facts| millions(facts.parameters))),
            or_unknown(facts.map(|facts| facts.architecture.clone())),
            usable,
        ]);
    }
    table
}

/// Writes a number of weights.
fn millions(count: u64) -> String {
    match count as f64 / 1e6 {
        millions if millions >= 1000.0 => format!("{:.1} B", millions / 1000.0),
        millions if millions >= 10.0 => format!("{millions:.0} M"),
        millions => format!("{millions:.1} M"),
    }
}

fn add(ctx: &Context, args: &AddArgs) -> anyhow::Result<()> {
    let path = match &args.path {
        Some(path) => path.clone(),
        None => {
            let mut cached = model_store::in_hub_cache().into_iter();
            let found = cached.find(|model| model.name == args.name);
            found.map(|model| model.path).ok_or_else(|| {
                anyhow!("the Hub's cache has no model `{}`", args.name).context(Hint(
                    "name its folder too, or download it with `tinkrs models pull`",
                ))
            })?
        }
    };
    register(ctx, &args.name, &path)
}

/// Gives a model a name, after a look at it.
fn register(ctx: &Context, name: &str, path: &Path) -> anyhow::Result<()> {
    check_name(name)?;
    let path = path
        .canonicalize()
        .with_context(|| format!("could not find {}", path.display()))?;
    let facts = inspect(&path)
        .with_context(|| format!("{} is not a model that can be used", path.display()))
        .context(Hint(
            "a model is a Hugging Face folder with config.json and safetensors, or a GGUF file, of a \
             Llama, Mistral, Qwen2, Qwen3 and Qwen3.5 (experts, too), gpt-oss, Phi-3 or Gemma 2 or 3",
        ))?;
    if let Some(note) = &facts.note {
        ctx.note(format_args!("note: {note}"));
    }
    let model = NamedModel::new(name, path);
    let mut store = ModelStore::open()?;
    if let Some(before) = store.add(&model)? {
        ctx.note(format_args!(
            "`{name}` was the name of {} before",
            before.display()
        ));
    }
    let text = format!(
        "`{name}` is now the name of {}: {}, {} weights",
        model.path.display(),
        facts.architecture,
        millions(facts.parameters)
    );
    let source = if store.is_download(&model.path) {
        "pulled"
    } else {
        "added"
    };
    ctx.done(&entry(model, source), text)
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let fits = |c: char| c.is_ascii_graphic() && c != '=' && c != '\\';
    let is_path = name.starts_with(['/', '.', '-', '~']) || name.contains("//");
    if name == tinkrs_nano::NAME {
        return Err(anyhow!("`{name}` is the built-in model").context(Hint("choose another name")));
    }
    if name.is_empty() || is_path || name.ends_with('/') || !name.chars().all(fits) {
        return Err(
            anyhow!("`{name}` cannot be the name of a model").context(Hint(
                "the name comes first, then the path: `tinkrs models add my-org/my-model FOLDER`",
            )),
        );
    }
    Ok(())
}

/// Deletes what was downloaded, if nothing else needs it.
fn delete(store: &ModelStore, model: &NamedModel) -> anyhow::Result<()> {
    let path = model.path.display();
    ensure!(
        store.is_download(&model.path),
        "{path} was not downloaded by `tinkrs models pull`, and is left alone"
    );
    let mut others = store.all().filter(|other| other.name != model.name);
    if let Some(other) = others.find(|other| other.path.starts_with(&model.path)) {
        bail!(
            "{path} has another name, `{}`, and is left alone",
            other.name
        );
    }
    match std::fs::remove_dir_all(&model.path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not delete {path}"))
        }
        _ => Ok(()),
    }
}

fn remove(ctx: &Context, args: &RemoveArgs) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Removed<'a> {
        name: &'a str,
        path: &'a Path,
        deleted: bool,
    }
    let name = args.name.as_str();
    if name == tinkrs_nano::NAME {
        return Err(anyhow!(
            "`{name}` comes with this program and cannot be removed"
        ));
    }
    let mut store = ModelStore::open()?;
    let found = store.find(name).ok_or_else(|| {
        anyhow!("there is no model `{name}`")
            .context(Hint("`tinkrs models list` shows what was added"))
    })?;
    let path = found.path.as_path();
    if args.delete {
        delete(&store, &found).context(Hint("without `--delete` only the name is forgotten"))?;
    }
    store.remove(name)?;
    let text = if args.delete {
        format!("deleted {}", path.display())
    } else {
        format!("forgot `{name}`; {} is still there", path.display())
    };
    ctx.done(
        &Removed {
            name,
            path,
            deleted: args.delete,
        },
        text,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path_and_no_option() {
        for name in ["tiny", "my-org/my-model", "a/b-1.5B:q4"] {
            check_name(name).unwrap();
        }
        for name in [
            "",
            "/models/x",
            "./x",
            "a=b",
            "-x",
            "a b",
            "a//b",
            "a/",
            "tinkrs/nano",
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn weights_are_counted_in_words() {
        assert_eq!(millions(1_740_000), "1.7 M");
        assert_eq!(millions(134_515_008), "135 M");
        assert_eq!(millions(7_600_000_000), "7.6 B");
    }
}
